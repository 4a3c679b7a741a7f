"""Render batch scripts from a run's config and the site profile, and those of report jobs. Pure functions."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.config.stop_time import lead_within
from disttrain.records.run_json import asks_for_gpus
from jobs.core.environment import SETUP_EXIT_VARIABLE
from jobs.node.peers import after_first_end_s
from jobs.schedulers.slurm.commands import check_path, file_pattern, sbatch_word
from jobs.schedulers.slurm.profile import EXPEDITE, GENERIC, Profile

Options = Mapping[str, str | int | bool | None]
"""Options of sbatch by long name: True for one without a value, None for one that is left out."""
_STEP_NUMBERS = 4
"""The number of the agents' step is the number of earlier starts, modulo this: only starts that are a
multiple of it apart share a number. More numbers would cost more empty steps, each a request to the
controller."""
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
    needs: Sequence[str] = ()
    """Ids of the jobs that must end first (`afterany`), and end well (`afterok`); a requeue is no end."""
    at_once: int | None = None
    """Largest number of tasks of the array at the same time."""
    folders: Sequence[Path] = ()
    """Further folders that the ranks need: those of a `command`."""
    excluded_nodes: Sequence[str] = ()
    """Nodes to exclude besides those of the profile."""


def render(batch: ScriptFields) -> str:
    """The text of the script. Raises `ConfigError` for a path that a script cannot contain."""
    profile, tasks, nodes = batch.profile, batch.tasks, batch.config["resources"]["nodes"]
    in_container = ":," if profile.container else ""
    for folder in (batch.logs, *(task.run_dir for task in tasks)):
        check_path("--runs", folder, in_container)
    python = profile.python or batch.python
    if profile.python is None:  # else the profile was checked
        check_path("the Python that submits", Path(python))
    check_path("the code", batch.code, ":" + in_container)
    for folder in batch.folders:
        check_path("the working directory", folder, in_container)
    options: dict[str, str | int | bool | None] = {
        "job-name": batch.name,
        "comment": batch.comment,
        "output": f"{file_pattern(batch.logs)}/{'%A_%a' if len(tasks) > 1 else '%j'}.log",
        **_array(batch),
    }
    if batch.after or batch.needs:
        kinds = {"afterany": batch.after, "afterok": batch.needs}
        own = [":".join([kind, *job_ids]) for kind, job_ids in kinds.items() if job_ids]
        options["dependency"] = ",".join(map(str, filter(None, [*own, profile.sbatch.get("dependency")])))
    options |= {"kill-on-invalid-dep": "yes"} if batch.needs else {}  # else the job would wait for ever
    return script_text(
        *directives(options | resources(batch.config, profile, batch.excluded_nodes) | options),
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
            (f"{shlex.quote(python)} -m {_TASK}", '"$run" --submission "$submission"'),
            after_first_end_s(batch.config),
        ),
    )


def _unpack(batch: ScriptFields) -> list[str]:
    """Lines that unpack missing copies of code from their archives."""
    copies = [batch.code, *(folder for folder in batch.folders if folder.parent == batch.code.parent)]
    new = '"$copy.$SLURM_JOB_ID"'
    return [
        f"for copy in {' '.join(shlex.quote(str(copy)) for copy in copies)}; do",
        f'  [ -d "$copy" ] || {{ [ -f "$copy.tar" ] && mkdir -p {new} &&',
        f'    tar -xmf "$copy.tar" -C {new} && mv -T {new} "$copy"; }} ||',
        '    [ -d "$copy" ] || echo "the code copy of this job is missing: $copy" >&2',
        "done",
    ]


def shape_options(batch: ScriptFields) -> list[str]:
    """Options of the script that neither name a run nor a job, such as `--nodes=2`."""
    lines = directives(_array(batch) | resources(batch.config, batch.profile, batch.excluded_nodes))
    return [line.removeprefix("#SBATCH ") for line in lines]


def _array(batch: ScriptFields) -> dict[str, str | int | bool | None]:
    if len(batch.tasks) == 1:
        return {}
    at_once = "" if batch.at_once is None else f"%{batch.at_once}"
    return {"array": f"0-{len(batch.tasks) - 1}{at_once}"}


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
        **_site(profile, "partition", "account", "qos", "reservation", "wckey"),
    }
    python = profile.python or python
    # Without `command`, the shell would read a path with `=` as an assignment.
    run = f"command {shlex.join([python, *command])}"
    return script_text(*directives(options), "", *job_setup(profile), *_mail(profile), run)


def _mail(profile: Profile) -> list[str]:
    """Lines with which the job requests Slurm's mail about its own end.

    An option of sbatch would request a mail about a job that is cancelled while it waits, because a job that
    waits for more runs replaces it. The job fails if a run has failed, and Slurm sends the mail `END` only
    about a job that has not failed.
    """
    if not {*profile.mail_type} - {"NONE"}:
        return []
    user = [f"MailUser={profile.mail_user}"] if profile.mail_user else []
    types = "END,FAIL" if "END" in profile.mail_type else "FAIL"
    request = shlex.join(["scontrol", "update", f"MailType={types}", *user])
    return [f'{request} JobId="$SLURM_JOB_ID" || :', ""]


ENVIRONMENT = (
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


def resources(
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
        **_site(profile, "partition", "account", "qos", "reservation", "constraint"),
        "exclude": ",".join([*filter(None, [profile.exclude]), *excluded]) or None,
        "wckey": profile.wckey,
    }
    return options | {name: value for name, value in profile.sbatch.items() if name not in options}


def _site(profile: Profile, *names: str) -> dict[str, str | None]:
    """Options that keys of the profile have the names of."""
    return {name: getattr(profile, name) for name in names}


def _cpus(config: Mapping[str, Any], profile: Profile) -> int:
    """Processors of a node."""
    resources = config["resources"]
    loaders = config["data"]["workers"] if "data" in config else 0  # a command starts its own
    of_a_rank = resources["threads_per_rank"] + loaders
    return profile.cpus_per_task or int(resources["gpus_per_node"] * of_a_rank)


def _gpus(config: Mapping[str, Any], profile: Profile) -> dict[str, str]:
    """The option that requests the GPUs of a node; with `gres`, also the site's other generic resources."""
    resources, of_type = config["resources"], f"{profile.gpu_type}:" if profile.gpu_type else ""
    if profile.gpus == "none" or not asks_for_gpus(resources["device"]):
        return {}
    count = resources["gpus_per_node"] * (resources["nodes"] if profile.gpus == "gpus" else 1)
    if profile.gpus != "gres":
        return {profile.gpus: f"{of_type}{count}"}
    others = [str(profile.sbatch["gres"])] if "gres" in profile.sbatch else []
    return {"gres": ",".join([f"gpu:{of_type}{count}", *others])}


def _signal_s(job: Mapping[str, Any]) -> int:
    """Seconds from Slurm's warning signal to the time limit, equal to those from the ranks' own stop.

    The signal comes up to a minute early, never late. At pre-emption Slurm sends the same signal at once.
    """
    return min(max(1, math.ceil(lead_within(60 * job["time_limit_min"], job["stop_lead_s"]))), 65535)


def directives(options: Options) -> list[str]:
    """The `#SBATCH` lines."""
    return [
        f"#SBATCH --{name}" + ("" if value is True else f"={sbatch_word(name, str(value))}")
        for name, value in options.items()
        if value is not None
    ]


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


def job_setup(profile: Profile) -> list[str]:
    """Lines that run once, in the batch shell on the first node: the modules and `setup` of the profile."""
    lines = []
    if profile.modules:
        lines += [
            "# A batch shell is not a login shell, so `module` may be undefined.",
            "type -t module >/dev/null || . /etc/profile",
            f"module load {' '.join(map(shlex.quote, profile.modules))} || exit",
            "",
        ]
    if profile.setup:
        lines += [f"# Set-up of profile {profile.name}.", *profile.setup, ""]
    return lines


def node_setup(profile: Profile) -> list[str]:
    """Lines that define the shell script `node_setup`, which each task runs before Python.

    The script runs the profile's lines and then its own arguments. It ignores signals until the agent handles
    them. If a line exits, the script runs its arguments as well, so that the agent records the failure: the
    exit code is in `SETUP_EXIT_VARIABLE`.
    """
    if not profile.node_setup:
        return []
    script = [
        'trap "" USR1 USR2 TERM',
        f'trap "{SETUP_EXIT_VARIABLE}=\\$? exec \\"\\$@\\"" EXIT',
        *profile.node_setup,
        'exec "$@"',
    ]
    return [
        f"# Set-up of each node by profile {profile.name}. Python follows also if it exits, to record that.",
        f"node_setup={shlex.quote(chr(10).join(script))}",
        "",
    ]


def launch(nodes: str, cpus: str, profile: Profile, task: Sequence[str], wait_s: int) -> list[str]:
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
        _srun([*agents, wait], profile, f"{command} {arguments}") + " && exit",
        "status=$?",
        "",
        "# If srun or the agent of node 0 was killed, the attempt is open. This step closes the attempt",
        "# and requeues the job. Agents that have not ended hold the memory, so this step requests none.",
        _srun(
            [one_task, f"{overlap} --mem=0"],
            profile,
            f"{command} --after-failure {arguments}",
        )
        + " || exit $status",
    ]


def _srun(options: Sequence[str], profile: Profile, task: str) -> str:
    """A command that runs `task` under srun."""
    extra = (f"--{name}" + ("" if value is True else f"={value}") for name, value in profile.srun.items())
    lines = ["srun", *options, *filter(None, [shlex.join(extra)])]
    prefix = 'bash -c "$node_setup" bash' if profile.node_setup else _IGNORE_SIGNALS
    lines += [prefix, task]
    return " \\\n  ".join(lines)


_IGNORE_SIGNALS = """sh -c 'trap "" USR1 USR2 TERM; exec "$@"' sh"""
"""Prefix of a command that ignores these signals."""


def script_text(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines]) + "\n"
