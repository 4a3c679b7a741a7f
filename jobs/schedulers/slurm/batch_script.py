"""Render batch scripts from a run's config and the site profile. Pure functions.

`render` makes the script that `submit.py` submits. `by_hand` makes `jobs/train.sbatch`, which takes config
keys as arguments.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.config.requested_device import asks_for_gpus
from disttrain.config.stop_time import lead_within
from disttrain.errors import ConfigError
from jobs.node.peers import after_first_end_s
from jobs.schedulers.slurm import option_syntax
from jobs.schedulers.slurm.quoting import file_pattern, sbatch_word
from jobs.schedulers.slurm.setup_lines import job_setup, node_setup
from jobs.schedulers.slurm.site_profile import EXPEDITE, GENERIC, Profile

_LONGEST_SIGNAL_S = 65535
_STEP_NUMBERS = 4
"""The number of the agents' step is the number of earlier starts, modulo this.

Two starts share it only if they are a multiple of this apart. More numbers would cost more empty steps, each
a request to the controller before the agents start."""


@dataclass(frozen=True)
class ArrayTask:
    """One run of a batch and the number of its submission."""

    run_dir: Path
    submission: int


@dataclass(frozen=True)
class ScriptFields:
    """Fields of a batch script of one run, or of a job array with a task for each run."""

    name: str
    comment: str
    """Tag by which `find` identifies the jobs if their receipts are lost."""
    config: Mapping[str, Any]
    """Config of any of the runs; the script depends only on values that all runs share."""
    tasks: Sequence[ArrayTask]
    logs: Path
    """Folder for the output of the batch shell and srun."""
    code: Path
    """Folder of the code copy that the jobs run (`jobs.core.code_copy`)."""
    python: str
    """The submitting interpreter; `python` of the profile takes precedence."""
    profile: Profile = GENERIC
    after: Sequence[str] = ()
    """Ids of the jobs to wait for (`afterany`). A requeued job has not ended."""
    at_once: int | None = None
    """Largest number of tasks of the array at the same time."""
    folders: Sequence[Path] = ()
    """Further folders that a container must have: those of a `command`."""
    excluded_nodes: Sequence[str] = ()
    """Nodes to exclude besides those of the profile."""


def render(batch: ScriptFields) -> str:
    """The text of the script. Raises `ConfigError` for a path that a script cannot contain."""
    in_container = ":," if batch.profile.container else ""
    for folder in (batch.logs, *(share.run_dir for share in batch.tasks)):
        check_path("--runs", folder, in_container)
    check_path("the code", batch.code, ":" + in_container)
    for folder in batch.folders:
        check_path("the working directory", folder, in_container)
    several, profile, nodes = len(batch.tasks) > 1, batch.profile, batch.config["resources"]["nodes"]
    log = f"{file_pattern(str(batch.logs))}/{'%A_%a' if several else '%j'}.log"
    options: dict[str, str | int | bool | None] = {
        "job-name": batch.name,
        "comment": batch.comment,
        "output": log,
    }
    options |= _array(batch)
    if batch.after:
        own = batch.profile.sbatch.get("dependency")
        options["dependency"] = ",".join(["afterany:" + ":".join(batch.after), *([str(own)] if own else [])])
    folders = list(
        dict.fromkeys([batch.code, *(share.run_dir.parent for share in batch.tasks), *batch.folders])
    )
    return _text(
        [
            "#!/bin/bash",
            *directives(options | _resources(batch.config, profile, batch.excluded_nodes) | options),
            "",
            *(_EXPEDITED if profile.sbatch.get("requeue") == EXPEDITE else ()),
            *_ENVIRONMENT,
            *job_setup(profile),
            "# Jobs run this copy of the code, not modules of the working directory.",
            f"code={shlex.quote(str(batch.code))}",
            *_unpack(batch),
            "export PYTHONSAFEPATH=1",
            "export PYTHONPATH=$code${PYTHONPATH:+:$PYTHONPATH}",
            "",
            *_runs(batch.tasks),
            "",
            *_launch(
                str(nodes),
                str(_cpus(batch.config, profile)),
                profile,
                [shlex.quote(str(folder)) for folder in folders],
                (
                    f"{shlex.quote(_python(batch))} -m jobs.schedulers.slurm.task",
                    '"$run" --submission "$submission"',
                ),
                after_first_end_s(batch.config),
            ),
        ]
    )


def _unpack(batch: ScriptFields) -> list[str]:
    """Lines that unpack missing copies of code from their archives."""
    copies = [batch.code, *(folder for folder in batch.folders if folder.parent == batch.code.parent)]
    new = '"$copy.$SLURM_JOB_ID"'
    return [
        f"for copy in {' '.join(shlex.quote(str(copy)) for copy in copies)}; do",
        f'  [ -d "$copy" ] || {{ [ -f "$copy.tar" ] && mkdir {new} &&',
        f'    tar -xf "$copy.tar" -C {new} && mv -T {new} "$copy"; }} ||',
        '    [ -d "$copy" ] || echo "the code copy of this job is missing: $copy" >&2',
        "done",
    ]


def shape_options(batch: ScriptFields) -> list[str]:
    """Options of the script that neither name a run nor a job, such as `--nodes=2`."""
    lines = directives(_array(batch) | _resources(batch.config, batch.profile, batch.excluded_nodes))
    return [line.removeprefix("#SBATCH ") for line in lines]


def _array(batch: ScriptFields) -> dict[str, str | int | bool | None]:
    if len(batch.tasks) == 1:
        return {}
    at_once = "" if batch.at_once is None else f"%{batch.at_once}"
    return {"array": f"0-{len(batch.tasks) - 1}{at_once}"}


def _python(batch: ScriptFields) -> str:
    if batch.profile.python is not None:
        return batch.profile.python
    if batch.profile.container is not None:
        return "python3"
    try:
        return option_syntax.command(batch.python)
    except ValueError as error:
        raise ConfigError(f"the Python that submits, {batch.python!r}, {error}") from None


def by_hand(config: Mapping[str, Any], profile: Profile = GENERIC) -> str:
    """`jobs/train.sbatch`, which requests the resources of `config`; options of sbatch override them."""
    options: dict[str, str | int | bool | None] = {"job-name": "train", "output": "train-%j.log"}
    return _text(
        [
            "#!/bin/bash",
            *_BY_HAND_HEAD,
            *directives(options | _resources(config, profile)),
            "",
            *_ENVIRONMENT,
            *job_setup(profile),
            *_BY_HAND_CODE,
            "",
            *_launch(
                '"$SLURM_JOB_NUM_NODES"',
                '"$SLURM_CPUS_PER_TASK"',
                profile,
                ['"$code"', '"$PWD"'],
                ('"$python" -m jobs.submission.sbatch_entry', '"$@"'),
                after_first_end_s(config),
            ),
        ]
    )


def check_path(what: str, path: Path, signs: str = "") -> None:
    """Raise `ConfigError` for a path that a script cannot contain, or with a character of `signs`."""
    try:
        file_pattern(option_syntax.clean(str(path)))
        found = next((sign for sign in signs if sign in str(path)), None)
        if found:
            raise ValueError(f"holds {found!r}, which ends a path among others")
    except ValueError as error:
        raise ConfigError(f"{what}: {str(path)!r} {error}") from None


_ENVIRONMENT = (
    "# Variables of a launcher or an allocation around the submitting shell would change srun and the ranks.",
    "unset ${!SRUN_@} ${!SBATCH_@} ${!SLURM_CPU_BIND@} ${!SLURM_MEM_BIND@} ${!SLURM_GPU_BIND@}",
    "unset ${!SLURM_STEP@} MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK",
    "# Slurm sets these two from sbatch's options. srun would ask for the GPUs of all nodes on one node, and",
    "# refuse a number of processors that differs. Without them, each step gets all GPUs of its nodes.",
    "unset SLURM_GPUS SLURM_TRES_PER_TASK",
    "# The nodes get all other variables, also if the site submits with --export=NONE.",
    "export SLURM_EXPORT_ENV=ALL",
    "",
)

_EXPEDITED = (
    "# Slurm holds an expedited job whose script fails, for good. The result is in the run directory.",
    "trap 'exit 0' EXIT",
    "",
)

_BY_HAND_HEAD = (
    "# One run, started by hand. Its run directory is below runs/ in the folder where sbatch is called.",
    "#",
    "#   sbatch --nodes 2 jobs/train.sbatch --config my.yaml",
    "#   sbatch jobs/train.sbatch                              the default config",
    "#",
    "# Options of sbatch, before the file name, override the lines below. Arguments after it are --config,",
    "# --name, --run-name, --skip-preflight, --from-scratch and keys of the config.",
    "# Generated by `make schemas` from jobs/schedulers/slurm/batch_script.py. Scripts of submit.py differ",
    "# in the path of the code and in the run that they start.",
)

_BY_HAND_CODE = (
    "# Slurm runs a copy of this file. The code is beside the original, else in the submit directory.",
    "script=$(scontrol show job \"$SLURM_JOB_ID\" | sed -n 's/^ *Command=//p')",
    'script=${script%" $*"} # the path is followed by the arguments',
    'for code in "${script%/*}/.." "$SLURM_SUBMIT_DIR"; do',
    '  [ -f "$code/jobs/submission/sbatch_entry.py" ] && break',
    "done",
    'code=$(cd "$code" && pwd) && [ -f "$code/jobs/submission/sbatch_entry.py" ] || {',
    '  echo "cannot start: no code of disttrain around $script, nor in $SLURM_SUBMIT_DIR" >&2',
    "  exit 69",
    "}",
    "export PYTHONPATH=$code${PYTHONPATH:+:$PYTHONPATH}",
    "",
    "python=${DISTTRAIN_PYTHON:-$code/.venv/bin/python}",
    '[ -n "$DISTTRAIN_PYTHON" ] || [ -x "$python" ] || python=python3',
)


def _resources(
    config: Mapping[str, Any], profile: Profile, excluded: Sequence[str] = ()
) -> dict[str, str | int | bool | None]:
    """Options of sbatch from the shape and the limits of a run, the site profile, and excluded nodes."""
    resources, job = config["resources"], config["job"]
    options: dict[str, str | int | bool | None] = {
        "nodes": resources["nodes"],
        "ntasks-per-node": 1,
        "cpus-per-task": _cpus(config, profile),
        **_gpus(config, profile),
        "mem": profile.memory,
        "exclusive": profile.exclusive or None,
        "time": math.ceil(job["time_limit_min"]),
        "signal": f"USR2@{_signal_s(job)}",
        "requeue": profile.sbatch.get("requeue", True),
        "open-mode": "append",
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "reservation": profile.reservation,
        "constraint": profile.constraint,
        "exclude": ",".join([*filter(None, [profile.exclude]), *excluded]) or None,
        "wckey": profile.wckey,
    }
    return options | {name: value for name, value in profile.sbatch.items() if name not in options}


def _cpus(config: Mapping[str, Any], profile: Profile) -> int:
    """Processors of a node."""
    resources = config["resources"]
    loaders = config["data"]["workers"] if "data" in config else 0  # a command starts its own
    of_a_rank = resources["threads_per_rank"] + loaders
    return profile.cpus_per_task or int(resources["gpus_per_node"] * of_a_rank)


def _gpus(config: Mapping[str, Any], profile: Profile) -> dict[str, str]:
    """The option that requests the GPUs of a node; with `gres`, also the site's other generic resources."""
    ranks = config["resources"]["gpus_per_node"]
    if not asks_for_gpus(config["resources"]["device"]):
        return {}
    of_type = f"{profile.gpu_type}:" if profile.gpu_type else ""
    if profile.gpus == "gpus-per-node":
        return {"gpus-per-node": f"{of_type}{ranks}"}
    if profile.gpus == "gpus":
        return {"gpus": f"{of_type}{config['resources']['nodes'] * ranks}"}
    if profile.gpus == "gres":
        others = [profile.sbatch["gres"]] if "gres" in profile.sbatch else []
        return {"gres": ",".join([f"gpu:{of_type}{ranks}", *map(str, others)])}
    return {}


def _signal_s(job: Mapping[str, Any]) -> int:
    """Seconds from Slurm's warning signal to the time limit, equal to those from the ranks' own stop.

    The signal comes up to a minute early, never late. At pre-emption Slurm sends the same signal at once.
    """
    lead_s = lead_within(60 * job["time_limit_min"], job["stop_lead_s"])
    return min(max(1, math.ceil(lead_s)), _LONGEST_SIGNAL_S)


def directives(options: Mapping[str, str | int | bool | None]) -> list[str]:
    """The `#SBATCH` lines. An option of value True has no value in the line; an option of None is omitted."""
    return [
        f"#SBATCH --{name}" + ("" if value is True else f"={_word(name, str(value))}")
        for name, value in options.items()
        if value is not None
    ]


def _word(option: str, value: str) -> str:
    try:
        return sbatch_word(option_syntax.clean(value))
    except ValueError as error:
        raise ConfigError(f"--{option}={value!r} {error}") from None


def _runs(tasks: Sequence[ArrayTask]) -> list[str]:
    """Lines that set `run` and `submission`, for an array by the index of the task."""
    if len(tasks) == 1:
        return [f"run={shlex.quote(str(tasks[0].run_dir))} submission={tasks[0].submission}"]
    return [
        "# One run for each task of the array.",
        "runs=(",
        *(f"  {shlex.quote(str(share.run_dir))}" for share in tasks),
        ")",
        f"submissions=({' '.join(str(share.submission) for share in tasks)})",
        "run=${runs[SLURM_ARRAY_TASK_ID]} submission=${submissions[SLURM_ARRAY_TASK_ID]}",
    ]


def _launch(
    nodes: str, cpus: str, profile: Profile, folders: Sequence[str], task: Sequence[str], wait_s: int
) -> list[str]:
    """Lines that start an agent on each node, and a step after a failure. Only `profile` is not quoted.

    `task` is the command of an agent and its arguments. srun ends agents `wait_s` seconds after the first.
    """
    command, arguments = task
    agents = [f"--nodes={nodes} --ntasks={nodes}", f"--ntasks-per-node=1 --cpus-per-task={cpus}"]
    one_task = "--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1"
    overlap = "--relative=0 --overlap"
    wait = f"--kill-on-bad-exit=0 --wait={wait_s}"
    return [
        *node_setup(profile),
        "# This shell survives signals, and runs a trap only after srun has ended.",
        "trap : TERM USR1 USR2",
        "",
        "# An srun of an earlier start, on a node that was frozen, may return and end its step by number.",
        "# So the number of the agents' step differs between starts: empty steps come before this step.",
        "# A failure of an empty step ends nothing, also after `set -e` in a profile.",
        f"for _ in $(seq $((${{SLURM_RESTART_COUNT:-0}} % {_STEP_NUMBERS}))); do",
        f"  srun {one_task} {overlap} true || :",
        "done",
        "",
        "# One agent on each node. All counts are given, since srun reads others from the environment.",
        "# After one node fails, the other nodes have time to record how they ended.",
        "# srun runs in the foreground: Slurm's signals go to the agents.",
        "# Signals are ignored while Python starts, until the agent has installed its handlers.",
        _srun([*agents, wait], profile, folders, f"{command} {arguments}") + " && exit",
        "status=$?",
        "",
        "# If srun or the agent of node 0 was killed, the attempt is open. This step closes the attempt",
        "# and requeues the job. Agents that have not ended hold the memory, so this step requests none.",
        _srun(
            [one_task, f"{overlap} --mem=0"],
            profile,
            folders,
            f"{command} --after-failure {arguments}",
        )
        + " || exit $status",
    ]


def _srun(options: Sequence[str], profile: Profile, folders: Sequence[str], task: str) -> str:
    """A command that runs `task` under srun, in the container of the profile if it has one."""
    lines = ["srun", *options]
    extra = [
        shlex.quote(f"--{name}" + ("" if value is True else f"={value}"))
        for name, value in profile.srun.items()
    ]
    if extra:
        lines.append(" ".join(extra))
    if profile.container is not None and profile.container.kind == "apptainer":
        # apptainer starts slowly, too, and resets signals to their defaults for its child
        lines.append(_IGNORE_SIGNALS)
    prefix = 'bash -c "$node_setup" bash' if profile.node_setup else _IGNORE_SIGNALS
    lines += [*_container(profile, folders), prefix, task]
    return " \\\n  ".join(lines)


_IGNORE_SIGNALS = """sh -c 'trap "" USR1 USR2 TERM; exec "$@"' sh"""
"""Prefix of a command that ignores these signals."""


def _container(profile: Profile, folders: Sequence[str]) -> list[str]:
    """Arguments that run the rest of the command in a container, with code and runs at their host paths."""
    container = profile.container
    if container is None:
        return []
    mounts = [f"{folder}:{folder}" for folder in folders] + [shlex.quote(mount) for mount in container.mounts]
    arguments = [shlex.quote(argument) for argument in container.arguments]
    image = shlex.quote(container.image)
    if container.kind == "pyxis":
        return [" ".join([f"--container-image={image} --container-mounts={','.join(mounts)}", *arguments])]
    bound = " ".join(f"--bind {mount}" for mount in mounts)
    return [" ".join(["apptainer exec", bound, *arguments, image])]


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
