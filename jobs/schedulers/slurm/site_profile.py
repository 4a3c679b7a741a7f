"""Site profile: options of sbatch and srun at one site, and the environment of its nodes.

A profile does not change the results of a run, so neither config key nor run key includes it.
`profile_selection` reads profiles from files, `batch_script` writes them into scripts. Imports without torch.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    PositiveInt,
    StringConstraints,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from disttrain.config.masking import is_secret
from disttrain.config.numbers_only import NumbersOnly
from jobs.schedulers.inherited_variables import is_set_by_launcher
from jobs.schedulers.slurm import option_syntax
from jobs.schedulers.slurm.gres import count_gpus, parse_gres


def _matches(pattern: str, what: str) -> AfterValidator:
    return AfterValidator(lambda text: option_syntax.matching(text, pattern, what))


_NUMBER_TOO = WithJsonSchema({"type": ["string", "number"]})  # YAML reads `memory: 0` as a number
_Line = Annotated[str, StringConstraints(min_length=1), AfterValidator(option_syntax.clean)]
_Path = Annotated[_Line, AfterValidator(option_syntax.command)]
_NAMES_MEANT = "a name, or several with commas (letters, digits, '_', '.', ':', '@', '+', '-')"
_Names = Annotated[str, _matches(option_syntax.NAMES, _NAMES_MEANT)]
_Features = Annotated[
    str,
    _matches(option_syntax.FEATURES, "a constraint such as a100&nvme"),
    AfterValidator(option_syntax.paired),
]
_Memory = Annotated[
    str, _matches(option_syntax.MEMORY, "a size such as 64G; 0 is all memory of a node"), _NUMBER_TOO
]
_Module = Annotated[str, _matches(option_syntax.MODULE, "the name of a module, such as cuda/12.4")]
_Mount = Annotated[_Path, _matches(r"[^,]+", "one mount: SRC[:DST[:FLAGS]]")]
MailType = Literal["NONE", "END", "FAIL"]
EXPEDITE = "expedite"
"""The only value of `sbatch.requeue` that a profile may give."""


class _Model(NumbersOnly):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, coerce_numbers_to_str=True
    )


class Variable(_Model):
    """One environment variable that ranks get at this site."""

    value: Annotated[str, AfterValidator(option_syntax.clean), _NUMBER_TOO]
    """Value of the variable."""
    reason: _Line
    """Reason for the value; each run's `env.json` records both."""


class Container(_Model):
    """The container in which the ranks of a node run."""

    kind: Literal["pyxis", "apptainer"]
    """`pyxis` passes the image to srun (`--container-image`); `apptainer`: srun runs `apptainer exec`."""
    image: _Path
    """Image of the container: a file, or a name that pyxis or apptainer resolves."""
    mounts: tuple[_Mount, ...] = ()
    """`SRC[:DST[:FLAGS]]`, besides the code and the runs, which are mounted at their paths on the host."""
    arguments: tuple[_Line, ...] = ()
    """Further arguments: of srun for `pyxis`; of `apptainer exec`, such as `--nv`, for `apptainer`."""


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _with_commas(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


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
    exclude: Annotated[str, _matches(option_syntax.NODES, "a node list such as gpu[01-04,7]")] | None = None
    """Nodes that the job must not use."""
    gpus: Literal["gpus-per-node", "gres", "gpus", "none"] = "gpus-per-node"
    """Option that requests GPUs: `--gpus-per-node`, `--gres=gpu`, `--gpus` (of all nodes together), or none
    if nodes come with theirs."""
    gpu_type: Annotated[str, _matches(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", "a type such as h100")] | None = None
    """Type of GPU, as the site's generic resources name it, such as `h100` or `nvidia_h100_80gb_hbm3`."""
    gpus_per_node: PositiveInt | None = None
    """GPUs of a node, which `sweep --gpus` fills before the next node."""
    cpus_per_task: PositiveInt | None = None
    """Processors of each node, for sbatch and srun; null: one for each thread and loader process of its
    ranks."""
    memory: _Memory | None = None
    """Memory of each node, such as 64G; 0 is all of it; null: the site's default."""
    exclusive: bool | Literal["user", "mcs", "topo"] = False
    """Exclusive use: no other job shares the nodes; `user`, `mcs`, `topo`: no job of another user, of another
    label, or in the same part of the topology (Slurm 24.05)."""
    mail_user: Annotated[str, _matches(option_syntax.ADDRESS, "a mail address or a user's name")] | None = (
        None
    )
    """Recipient of Slurm's mail; null: the user who submits."""
    mail_type: Annotated[tuple[MailType, ...], BeforeValidator(_with_commas)] = ()
    """Slurm's mail about a sweep: one, when its report job ends. `END`: in any case; `FAIL`: if a run of the
    sweep has failed."""
    wckey: _Names | None = None
    """Workload characterization key."""
    sbatch: dict[str, Literal[True] | Annotated[_Line, _NUMBER_TOO]] = {}  # noqa: RUF012 -- pydantic copies it
    """Further options of sbatch by long name, such as `hint: nomultithread`; true for one without a value."""
    srun: dict[str, Literal[True] | Annotated[_Line, _NUMBER_TOO]] = {}  # noqa: RUF012 -- pydantic copies it
    """Further options of the srun that starts the agents, such as `cpu-bind: none`."""
    modules: Annotated[tuple[_Module, ...], BeforeValidator(_one_or_more)] = ()
    """Modules that the job loads, in this order."""
    setup: Annotated[tuple[_Line, ...], BeforeValidator(_one_or_more)] = ()
    """Shell lines that the batch script runs once, on the first node, after loading the modules. All nodes
    get the variables that they export."""
    node_setup: Annotated[tuple[_Line, ...], BeforeValidator(_one_or_more)] = ()
    """Shell lines (bash) that the task of each node runs before Python, in the container if there is one. The
    ranks of the node get the variables that they export."""
    environment: dict[str, Variable] = {}  # noqa: RUF012 -- pydantic copies it
    """Variables of every rank, each with its reason; `job.env` of a config takes precedence."""
    python: _Path | None = None
    """Python interpreter of the job; null: the one that submits, or `python3` in a container."""
    container: Container | None = None
    """Container in which the ranks run."""

    @field_validator("sbatch")
    @classmethod
    def _check_sbatch(cls, given: dict[str, Literal[True] | str]) -> dict[str, Literal[True] | str]:
        expedited = given.get("requeue") == EXPEDITE
        _check_options({*given} - ({"requeue"} if expedited else set()), option_syntax.SBATCH_TAKEN)
        if count_gpus(parse_gres(str(given.get("gres", "")))) is not None:
            raise ValueError("gres: request GPUs by the profile's gpus and gpu_type")
        return given

    @field_validator("srun")
    @classmethod
    def _check_srun(cls, given: dict[str, Literal[True] | str]) -> dict[str, Literal[True] | str]:
        _check_options(given, option_syntax.SRUN_TAKEN)
        if count_gpus(parse_gres(str(given.get("gres", "")))) is not None:
            raise ValueError("gres: all GPUs of a node belong to its one task")
        return given

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, given: dict[str, Variable]) -> dict[str, Variable]:
        for name in given:
            if not re.fullmatch(option_syntax.VARIABLE, name):
                raise ValueError(f"{name!r} is not the name of a variable")
            if is_set_by_launcher(name) or name == "PYTHONPATH":
                raise ValueError(f"{name} is set by the launcher for each rank")
            if is_secret(name):
                raise ValueError(f"{name} looks like a secret, and run.json records profiles; use job.env")
        return given

    @field_validator("setup", "node_setup")
    @classmethod
    def _check_setup(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        for line in lines:
            wrong = why_not_a_line(line)
            if wrong is not None:
                raise ValueError(f"{line!r} is not a complete line of shell: {wrong}")
        return lines

    @model_validator(mode="after")
    def _check_gpu_type(self) -> Profile:
        if self.gpu_type is not None and self.gpus == "none":
            raise ValueError(f"gpu_type={self.gpu_type!r} needs gpus: gpus-per-node, gres or gpus")
        return self

    def as_dict(self) -> dict[str, Any]:
        """JSON for `run.json`."""
        return self.model_dump(mode="json")


GENERIC = Profile(name="generic")
"""A profile without options, for any Slurm."""


def _check_options(given: Iterable[str], reasons: dict[str, str]) -> None:
    for option in given:
        option_syntax.matching(option, option_syntax.OPTION, f"a long option without dashes: {option!r}")
        why = option_syntax.taken(option, reasons)
        if why is not None:
            raise ValueError(f"{option} is reserved: {why}")


@functools.cache
def why_not_a_line(line: str) -> str | None:
    """The syntax error of `line` as one complete line of a script; None without bash.

    The second check puts the line into a group. A line that continues on the next one (a backslash at its
    end, a here-document) leaves the group open.
    """
    bash = shutil.which("bash")
    if bash is None:
        return None
    for text in (f"{line}\n", f"{{ :\n{line}\n}}\n"):
        done = subprocess.run([bash, "-n"], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0 or done.stderr:
            said = [*done.stderr.strip().splitlines(), "syntax error"]
            return said[0].removeprefix(f"{bash}: ")
    return None
