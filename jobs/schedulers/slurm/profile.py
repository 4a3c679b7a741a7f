"""Site profile: options of sbatch and srun at one site, and the environment of its nodes.

A profile does not change the results of a run, so neither config key nor run key includes it. Values are
checked so that none can end its line of the batch script. `jobs.schedulers.site_profiles` reads profiles from
files, `script` writes them into batch scripts. Imports without torch.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PositiveFloat,
    PositiveInt,
    Strict,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from disttrain.masking import is_secret
from jobs.schedulers.inherited_variables import is_set_by_launcher
from jobs.schedulers.slurm.commands import clean, count_gpus, no_option, option_refusal, parse_gres

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]*"
_NODE = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])*"
_FEATURES = r"[A-Za-z0-9_\[(!][A-Za-z0-9_.:=+&|*()\[\],!-]*"


def _matches(pattern: str, meaning: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, clean(text)):
            raise ValueError(f"is not {meaning}")
        return text

    return AfterValidator(check)


def _paired(text: str) -> str:
    """Return `text`. Raises `ValueError` for a bracket or parenthesis without its counterpart."""
    awaited = []
    for sign in text:
        if sign in "[(":
            awaited.append("])"["[(".index(sign)])
        elif sign in "])" and (not awaited or awaited.pop() != sign):
            raise ValueError(f"has an unmatched {sign!r}")
    if awaited:
        raise ValueError(f"lacks a {awaited[-1]!r}")
    return text


@functools.cache
def _shell_line(line: str) -> str:
    """Return `line`. Raises `ValueError` unless it is one complete line of a script (unchecked without bash).

    The second check puts the line into a group. A line that continues on the next one (a backslash at its
    end, a here-document) leaves the group open.
    """
    bash = shutil.which("bash")
    for text in (f"{line}\n", f"{{ :\n{line}\n}}\n") if bash else ():
        done = subprocess.run([bash or "", "-n"], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0 or done.stderr:
            why = [*done.stderr.strip().splitlines(), "syntax error"][0].removeprefix(f"{bash}: ")
            raise ValueError(f"is not a complete line of shell: {why}")
    return line


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _with_commas(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


def _as_text(value: object) -> object:
    """`Literal[True]` takes the number 1 as well."""
    return value if isinstance(value, bool) or not isinstance(value, int) else str(value)


_NUMBER_TOO = WithJsonSchema({"type": ["string", "number"]})  # YAML reads `memory: 0` as a number
_Line = Annotated[str, StringConstraints(min_length=1), AfterValidator(clean)]
_Shell = Annotated[_Line, AfterValidator(_shell_line)]
_Path = Annotated[_Line, AfterValidator(no_option)]
_NAMES = "a name, or several with commas (letters, digits, '_', '.', ':', '@', '+', '-')"
_Names = Annotated[str, _matches(f"{_WORD}(,{_WORD})*", _NAMES)]
_Nodes = Annotated[str, _matches(f"{_NODE}(,{_NODE})*", "a node list such as gpu[01-04,7]")]
_Features = Annotated[str, _matches(_FEATURES, "a constraint such as a100&nvme"), AfterValidator(_paired)]
_Memory = Annotated[
    str, _matches(r"\d+[KMGT]?", "a size such as 64G; 0 is all memory of a node"), _NUMBER_TOO
]
_Module = Annotated[
    str, _matches(r"[A-Za-z0-9_][A-Za-z0-9_.:+/=@-]*", "the name of a module, such as cuda/12.4")
]
_User = Annotated[
    str, _matches(rf"[A-Za-z0-9_][A-Za-z0-9_.+-]*(@{_WORD})?", "a mail address or a user's name")
]
_GpuType = Annotated[str, _matches(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", "a type such as h100")]
_Mount = Annotated[_Path, _matches(r"[^,]+", "one mount: SRC[:DST[:FLAGS]]")]
_Options = dict[str, Annotated[Literal[True] | Annotated[_Line, _NUMBER_TOO], BeforeValidator(_as_text)]]
MailType = Literal["NONE", "END", "FAIL"]
EXPEDITE = "expedite"
"""The only value of `sbatch.requeue` that a profile may give."""


_KEYS = "partition account qos constraint reservation exclude exclusive mail-user mail-type wckey container"
"""Options of sbatch with a key of their own."""


def _by_name(reasons: Mapping[str, str]) -> dict[str, str]:
    """The reason of each option, from the options of each reason."""
    return {name: reason for reason, names in reasons.items() for name in names.split()}


_RESERVED = {
    "sbatch": _by_name(
        {
            "the shape of the job comes from resources.nodes and resources.gpus_per_node": (
                "nodes ntasks tasks ntasks-per-node tasks-per-node ntasks-per-gpu"
            ),
            "set the profile's gpus and gpu_type": "gpus gpus-per-node gpus-per-task gpus-per-socket",
            "set the profile's cpus_per_task, gpus and gpu_type": "tres-per-task",
            "set the profile's cpus_per_task, which srun gets as well": "cpus-per-task",
            "set the profile's memory": "mem",
            "the environment of a run is in its env.json: set the profile's environment": (
                "export export-file get-user-env"
            ),
            "the run's state is read by means of it": "output error job-name comment",
            "whether a run starts again follows from the cause of its end; only `expedite` may be given": (
                "requeue"
            ),
            "whether a run starts again follows from the cause of its end": "no-requeue",
            "the runs of a shape share an array already": "array",
            "set job.time_limit_min": "time",
            "set job.stop_lead_s": "signal",
            "a run has a batch script, and full paths of its folders": "wrap external input open-mode chdir",
            "submit where that cluster is the default one: only its jobs are queried": "clusters",
            "give it to disttrain": "test-only wait",
            "it would change the output of sbatch": "parsable help usage version",
        }
    )
    | {name: f"set the profile's {name.replace('-', '_')}" for name in _KEYS.split()},
    "srun": _by_name(
        {
            "one task runs on each node of the job": (
                "nodes ntasks tasks ntasks-per-node tasks-per-node ntasks-per-gpu nodelist nodefile relative "
                "multi-prog jobid no-allocate"
            ),
            "all GPUs of a node belong to its one task": (
                "gpus gpus-per-node gpus-per-socket gpus-per-task tres-per-task"
            ),
            "set the profile's cpus_per_task, which sbatch gets as well": "cpus-per-task",
            "set it for sbatch: srun follows": "mem-per-cpu mem-per-gpu time signal exclude",
            "after one node fails, the others need time to record how they ended": "kill-on-bad-exit wait",
            "the environment would override the script": "export preserve-env",
            "the run's state is read by means of it": "output error input open-mode chdir pty",
            "srun would start nothing": "test-only help usage version",
            "set the profile's container": "container-image container-mounts",
        }
    ),
}
"""Options that a profile cannot set, each with the reason or the key to set instead."""


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, coerce_numbers_to_str=True
    )


class Variable(_Model):
    """One environment variable that ranks get at this site."""

    value: Annotated[str, AfterValidator(clean), _NUMBER_TOO]
    """Value of the variable."""
    reason: _Line
    """Reason for the value; each run's `env.json` records both."""


class Container(_Model):
    """The container of the ranks. Agents run outside of it."""

    kind: Literal["pyxis", "apptainer"]
    """`pyxis`: a step of srun with `--container-image`, which the ranks enter; `apptainer exec`."""
    image: _Path
    """Image of the container: a file, or a name that pyxis or apptainer resolves."""
    mounts: Annotated[tuple[_Mount, ...], BeforeValidator(_one_or_more)] = ()
    """`SRC[:DST[:FLAGS]]`, besides the code, the sweep's folder and the working directory of a command."""
    arguments: Annotated[tuple[_Line, ...], BeforeValidator(_one_or_more)] = ()
    """Further arguments: of srun for `pyxis`; of `apptainer exec`, such as `--nv`, for `apptainer`."""

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, arguments: Sequence[str]) -> Sequence[str]:
        for word in arguments:
            if word in ("--pid", "-p", "--containall", "-C", "--compat"):
                raise ValueError(
                    f"{word} hides the processes of the ranks from the agent; --contain is allowed"
                )
        return arguments


class Profile(_Model):
    """Options for submitting jobs at one site. Every key is optional."""

    name: Annotated[str, _matches(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", "a name of letters, digits, '_', '.', '-'")]
    """The file's name without its suffix; not given in the file."""
    description: _Line | None = None
    """Free text."""
    partition: _Names | None = None
    """Partition, or several, of which Slurm uses the first that is free; null: the site's default."""
    account: _Names | None = None
    """Account that is charged."""
    qos: _Names | None = None
    """Quality of service."""
    constraint: _Features | None = None
    """Features that nodes must have."""
    reservation: _Names | None = None
    """Reservation that the job uses."""
    exclude: _Nodes | None = None
    """Nodes that the job must not use."""
    gpus: Literal["gpus-per-node", "gres", "gpus", "none"] = "gpus-per-node"
    """Option that requests GPUs: `--gpus-per-node`, `--gres=gpu`, `--gpus` (of all nodes together), or none
    if nodes come with theirs."""
    gpu_type: _GpuType | None = None
    """Type of GPU, as the site's generic resources name it, such as `h100` or `nvidia_h100_80gb_hbm3`."""
    gpus_per_node: Annotated[PositiveInt, Strict()] | None = None
    """GPUs of a node, which `sweep --gpus` fills before the next node."""
    cpus_per_task: Annotated[PositiveInt, Strict()] | None = None
    """Processors of each node, for sbatch and srun; null: one for each thread and loader process of its
    ranks."""
    memory: _Memory | None = None
    """Memory of each node, such as 64G; 0 is all of it; null: the site's default."""
    exclusive: bool | Literal["user", "mcs", "topo"] = False
    """Exclusive use: no other job shares the nodes; `user`, `mcs`, `topo`: no job of another user, of another
    label, or in the same part of the topology (Slurm 24.05)."""
    mail_user: _User | None = None
    """Recipient of Slurm's mail; null: the user who submits."""
    mail_type: Annotated[tuple[MailType, ...], BeforeValidator(_with_commas)] = ()
    """Slurm's mail about a sweep: one, when its report job ends. `END`: in any case; `FAIL`: if a run of the
    sweep has failed."""
    wckey: _Names | None = None
    """Workload characterization key."""
    sbatch: _Options = {}
    """Further options of sbatch by long name, such as `hint: nomultithread`; true for one without a value."""
    srun: _Options = {}
    """Further options of the srun that starts the agents, such as `cpu-bind: none`."""
    modules: Annotated[tuple[_Module, ...], BeforeValidator(_one_or_more)] = ()
    """Modules that the job loads, in this order."""
    setup: Annotated[tuple[_Shell, ...], BeforeValidator(_one_or_more)] = ()
    """Shell lines that the batch script runs once, on the first node, after loading the modules. All nodes
    get the variables that they export."""
    node_setup: Annotated[tuple[_Shell, ...], BeforeValidator(_one_or_more)] = ()
    """Shell lines (bash) that the task of each node runs before Python. The ranks of the node get the
    variables that they export."""
    environment: dict[str, Variable] = {}
    """Variables of every rank, each with its reason; `job.env` of a config takes precedence."""
    idle_timeout_min: Annotated[PositiveFloat, Strict()] | None = None
    """Default of `job.idle_timeout_min`, by which a hang of a `command` is found."""
    python: _Path | None = None
    """Python interpreter of the agents; null: the one that submits. `job.python` names that of the ranks."""
    container: Container | None = None
    """Container in which the ranks run, by default with its `python3` (`job.python`)."""

    @field_validator("sbatch", "srun")
    @classmethod
    def _check_options(cls, options: _Options, info: ValidationInfo) -> _Options:
        reserved = _RESERVED[info.field_name or ""]
        for name in options:
            meant = next((taken for taken in reserved if taken.startswith(name)), None)  # Slurm abbreviates
            if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
                raise ValueError(f"{name!r} is not a long option without dashes")
            if name not in reserved and meant is not None:
                raise ValueError(f"{name} is reserved: it abbreviates {meant}: {reserved[meant]}")
            if name in reserved and not (name == "requeue" and options[name] == EXPEDITE):
                raise ValueError(f"{name} is reserved: {reserved[name]}")
        if count_gpus(parse_gres(str(options.get("gres", "")))) is not None:
            raise ValueError(f"gres: {reserved['gpus']}")
        return options

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, variables: dict[str, Variable]) -> dict[str, Variable]:
        for name in variables:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} is not the name of a variable")
            if is_set_by_launcher(name) or name == "PYTHONPATH":
                raise ValueError(f"{name} is set by the launcher for each rank")
            if is_secret(name):
                raise ValueError(f"{name} looks like a secret, and run.json records profiles; use job.env")
        return variables

    @model_validator(mode="after")
    def _check_gpu_type(self) -> Profile:
        if self.gpu_type is not None and self.gpus == "none":
            raise ValueError(f"gpu_type={self.gpu_type!r} needs gpus: gpus-per-node, gres or gpus")
        return self

    def as_dict(self) -> dict[str, Any]:
        """JSON for `run.json`."""
        return self.model_dump(mode="json")

    def refused_option(self) -> tuple[str, str] | None:
        """Key and reason of the first option that the installed sbatch or srun refuses; None without one."""
        options: list[tuple[str, str, str | Literal[True]]] = []
        if isinstance(self.exclusive, str):
            options = [("sbatch", "exclusive", self.exclusive)]
        for command, given in (("sbatch", self.sbatch), ("srun", self.srun)):
            options += [(command, name, value) for name, value in given.items()]
        for command, name, value in options:
            refusal = option_refusal(command, name, value, _RESERVED[command])
            if refusal is not None:
                return ("exclusive" if name == "exclusive" else f"{command}.{name}"), refusal
        return None


GENERIC = Profile(name="generic")
"""A profile without options, for any Slurm."""
