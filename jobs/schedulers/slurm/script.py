"""Render batch scripts from a run's config and the site profile. Pure functions.

`render` makes the script that `submit.py` submits, `render_report` that of a report job. `by_hand` makes
`jobs/train.sbatch`, which takes config keys as arguments.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.config.requested_device import asks_for_gpus
from disttrain.config.stop_time import lead_within
from disttrain.errors import ConfigError
from jobs.node.peers import after_first_end_s
from jobs.schedulers.slurm.profile import EXPEDITE, GENERIC, Profile, clean, no_option
from jobs.schedulers.slurm.steps import ENVIRONMENT, job_setup, launch

Options = Mapping[str, str | int | bool | None]
"""Options of sbatch by long name: True for one without a value, None for one that is left out."""
_LONGEST_SIGNAL_S = 65535
_TASK = "jobs.schedulers.task"


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
    profile, tasks, nodes = batch.profile, batch.tasks, batch.config["resources"]["nodes"]
    in_container = ":," if profile.container else ""
    for folder in (batch.logs, *(task.run_dir for task in tasks)):
        check_path("--runs", folder, in_container)
    check_path("the code", batch.code, ":" + in_container)
    for folder in batch.folders:
        check_path("the working directory", folder, in_container)
    options: dict[str, str | int | bool | None] = {
        "job-name": batch.name,
        "comment": batch.comment,
        "output": f"{file_pattern(batch.logs)}/{'%A_%a' if len(tasks) > 1 else '%j'}.log",
        **_array(batch),
    }
    if batch.after:
        others = filter(None, [profile.sbatch.get("dependency")])
        options["dependency"] = ",".join([f"afterany:{':'.join(batch.after)}", *map(str, others)])
    folders = dict.fromkeys([batch.code, *(task.run_dir.parent for task in tasks), *batch.folders])
    return _text(
        *_directives(options | _resources(batch.config, profile, batch.excluded_nodes) | options),
        "",
        *(_EXPEDITED if profile.sbatch.get("requeue") == EXPEDITE else ()),
        *ENVIRONMENT,
        *job_setup(profile),
        "# Jobs run this copy of the code, not modules of the working directory.",
        f"code={shlex.quote(str(batch.code))}",
        *_unpack(batch),
        "export PYTHONSAFEPATH=1",
        "export PYTHONPATH=$code${PYTHONPATH:+:$PYTHONPATH}",
        "",
        *_runs(tasks),
        "",
        *launch(
            str(nodes),
            str(_cpus(batch.config, profile)),
            profile,
            [shlex.quote(str(folder)) for folder in folders],
            (f"{shlex.quote(_python(batch))} -m {_TASK}", '"$run" --submission "$submission"'),
            after_first_end_s(batch.config),
        ),
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
    lines = _directives(_array(batch) | _resources(batch.config, batch.profile, batch.excluded_nodes))
    return [line.removeprefix("#SBATCH ") for line in lines]


def _array(batch: ScriptFields) -> dict[str, str | int | bool | None]:
    if len(batch.tasks) == 1:
        return {}
    at_once = "" if batch.at_once is None else f"%{batch.at_once}"
    return {"array": f"0-{len(batch.tasks) - 1}{at_once}"}


def _python(batch: ScriptFields) -> str:
    if batch.profile.python or batch.profile.container:
        return batch.profile.python or "python3"
    try:
        return no_option(batch.python)
    except ValueError as error:
        raise ConfigError(f"the Python that submits, {batch.python!r}, {error}") from None


def by_hand(config: Mapping[str, Any], profile: Profile = GENERIC) -> str:
    """`jobs/train.sbatch`, which requests the resources of `config`; options of sbatch override them."""
    return _text(
        *_BY_HAND_HEAD,
        *_directives({"job-name": "train", "output": "train-%j.log", **_resources(config, profile)}),
        "",
        *ENVIRONMENT,
        *job_setup(profile),
        *_BY_HAND_CODE,
        "",
        *launch(
            '"$SLURM_JOB_NUM_NODES"',
            '"$SLURM_CPUS_PER_TASK"',
            profile,
            ['"$code"', '"$PWD"'],
            ('"$python" -m jobs.submission.sbatch_entry', '"$@"'),
            after_first_end_s(config),
        ),
    )


def render_report(
    *,
    name: str,
    comment: str,
    after: Sequence[str],
    command: Sequence[str],
    logs: Path,
    python: str,
    profile: Profile,
) -> str:
    """The script of a job that runs a command of Python after other jobs: one task on one processor.

    `after` has the ids of these jobs (`afterany`): a requeued job has not ended. Raises `ConfigError` for a
    path that a script cannot contain.
    """
    check_path("--runs", logs)
    chosen = ("partition", "account", "qos", "reservation", "wckey")
    options: Options = {
        "job-name": name,
        "comment": comment,
        "output": f"{file_pattern(logs)}/%j.log",
        "dependency": ":".join(["afterany", *after]) if after else None,
        "kill-on-invalid-dep": "yes" if after else None,
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": 1,
        "mem": "1G",
        "time": 15,
        "requeue": True,
        "open-mode": "append",
        **{key: getattr(profile, key) for key in chosen},
    }
    # `python` of a profile with a container is a path in the image; this job runs without a container.
    python = python if profile.container else profile.python or python
    # Without `command`, the shell would read a path with `=` as an assignment.
    run = f"command {shlex.join([python, *command])}"
    return _text(*_directives(options), "", *job_setup(profile), *_mail(profile), run)


def _mail(profile: Profile) -> list[str]:
    """Lines with which the job requests Slurm's mail about its own end.

    An option of sbatch would request a mail about a job that is cancelled while it waits, because a job that
    waits for more runs replaces it. The job fails if a run has failed, and Slurm sends the mail `END` only
    about a job that has not failed.
    """
    wanted = {*profile.mail_type} - {"NONE"}
    if not wanted:
        return []
    types = "END,FAIL" if "END" in wanted else "FAIL"
    user = [f"MailUser={profile.mail_user}"] if profile.mail_user else []
    request = shlex.join(["scontrol", "update", f"MailType={types}", *user])
    return [f'{request} JobId="$SLURM_JOB_ID" || :', ""]


def check_path(what: str, path: Path, signs: str = "") -> None:
    """Raise `ConfigError` for a path that a script cannot contain, or with a character of `signs`."""
    try:
        clean(str(path))
        if "\\" in str(path):
            raise ValueError("holds a backslash, which switches Slurm's file patterns off")
        sign = next((sign for sign in signs if sign in str(path)), None)
        if sign:
            raise ValueError(f"holds {sign!r}, which ends a path among others")
    except ValueError as error:
        raise ConfigError(f"{what}: {str(path)!r} {error}") from None


def file_pattern(path: Path) -> str:
    """A path as a file pattern of Slurm, with each `%` escaped as `%%`."""
    return str(path).replace("%", "%%")


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
    "# Generated by `make schemas` from jobs/schedulers/slurm/script.py. Scripts of submit.py differ",
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


def _directives(options: Options) -> list[str]:
    """The `#SBATCH` lines."""
    return [
        f"#SBATCH --{name}" + ("" if value is True else f"={_word(name, str(value))}")
        for name, value in options.items()
        if value is not None
    ]


def _word(option: str, value: str) -> str:
    """A value as one argument of a `#SBATCH` line.

    sbatch splits such a line like a shell, with three exceptions: a backslash escapes within both kinds of
    quotes, an unquoted `#` ends the line, and sbatch expands nothing.
    """
    try:
        clean(value)
    except ValueError as error:
        raise ConfigError(f"--{option}={value!r} {error}") from None
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./&|*()\[\]!-]+", value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


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


def _text(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines]) + "\n"
