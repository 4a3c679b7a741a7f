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
from jobs.node.peers import after_first_end_s
from jobs.schedulers.slurm.commands import check_path, file_pattern, sbatch_word
from jobs.schedulers.slurm.profile import EXPEDITE, GENERIC, Profile
from jobs.schedulers.slurm.steps import job_setup, launch

Options = Mapping[str, str | int | bool | None]
"""Options of sbatch by long name: True for one without a value, None for one that is left out."""
_TASK = "jobs.schedulers.task"


@dataclass(frozen=True)
class ArrayTask:
    """One run of a batch and the number of its submission."""

    run_dir: Path
    submission: int


@dataclass(frozen=True)
class ScriptFields:
    """Fields of a batch script of one job, or of a job array, for one run or several in each job."""

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
    runs_per_job: int = 1

    @property
    def jobs(self) -> int:
        return math.ceil(len(self.tasks) / self.runs_per_job)


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
        "output": f"{file_pattern(batch.logs)}/{'%A_%a' if batch.jobs > 1 else '%j'}.log",
        **_array(batch),
    }
    if batch.after or batch.needs:
        kinds = {"afterany": batch.after, "afterok": batch.needs}
        own = [":".join([kind, *job_ids]) for kind, job_ids in kinds.items() if job_ids]
        options["dependency"] = ",".join(map(str, filter(None, [*own, profile.sbatch.get("dependency")])))
    options |= {"kill-on-invalid-dep": "yes"} if batch.needs else {}  # else the job would wait for ever
    return script_text(
        *directives(options | _resources(batch) | options),
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
        *_runs(tasks, batch.runs_per_job),
        "",
        *launch(
            str(nodes),
            str(_cpus(batch.config, profile, batch.runs_per_job)),
            profile,
            (f"{shlex.quote(python)} -m {_TASK}", '"$run" --submission "$submission"'),
            after_first_end_s(batch.config),
            batch.runs_per_job,
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
    lines = directives(_array(batch) | _resources(batch))
    return [line.removeprefix("#SBATCH ") for line in lines]


def _array(batch: ScriptFields) -> dict[str, str | int | bool | None]:
    if batch.jobs == 1:
        return {}
    at_once = "" if batch.at_once is None else f"%{batch.at_once}"
    return {"array": f"0-{batch.jobs - 1}{at_once}"}


def _resources(batch: ScriptFields) -> dict[str, str | int | bool | None]:
    return resources(batch.config, batch.profile, batch.excluded_nodes, batch.runs_per_job)


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
    config: Mapping[str, Any], profile: Profile, excluded: Sequence[str] = (), runs_per_job: int = 1
) -> dict[str, str | int | bool | None]:
    """Options of sbatch from the shape and the limits of a run, the site profile, excluded nodes, and the
    number of such runs in the job."""
    resources, job = config["resources"], config["job"]
    options: dict[str, str | int | bool | None] = {
        "nodes": resources["nodes"],
        "ntasks-per-node": 1,
        "cpus-per-task": _cpus(config, profile, runs_per_job),
        **_gpus(config, profile, 1 if resources["share_gpus"] else runs_per_job),
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


def _cpus(config: Mapping[str, Any], profile: Profile, runs: int = 1) -> int:
    """Processors of a node, for so many runs."""
    resources = config["resources"]
    loaders = config["data"]["workers"] if "data" in config else 0  # a command starts its own
    of_a_rank = resources["threads_per_rank"] + loaders
    return profile.cpus_per_task or int(runs * resources["gpus_per_node"] * of_a_rank)


def _gpus(config: Mapping[str, Any], profile: Profile, runs: int) -> dict[str, str]:
    """The option that requests the GPUs of a node; with `gres`, also the site's other generic resources."""
    resources, of_type = config["resources"], f"{profile.gpu_type}:" if profile.gpu_type else ""
    if profile.gpus == "none" or not asks_for_gpus(resources["device"]):
        return {}
    count = runs * resources["gpus_per_node"] * (resources["nodes"] if profile.gpus == "gpus" else 1)
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


def _runs(tasks: Sequence[ArrayTask], runs_per_job: int) -> list[str]:
    """Lines that set `run` and `submission`, or `runs` and `submissions` of a job of several; for an array by
    the index of the task."""
    if len(tasks) == 1:
        return [f"run={shlex.quote(str(tasks[0].run_dir))} submission={tasks[0].submission}"]
    own, of_job = "SLURM_ARRAY_TASK_ID", f"@]:SLURM_ARRAY_TASK_ID * {runs_per_job}:{runs_per_job}"
    chosen = [f"run=${{runs[{own}]}} submission=${{submissions[{own}]}}"]
    if runs_per_job > 1:
        chosen = [f'runs=("${{runs[{of_job}}}") submissions=("${{submissions[{of_job}}}")']
    several = f"{runs_per_job} runs, side by side," if runs_per_job > 1 else "One run"
    of_array = f"# {several} for each task of the array."
    return [
        of_array if runs_per_job < len(tasks) else "# The runs of this job.",
        "runs=(",
        *(f"  {shlex.quote(str(share.run_dir))}" for share in tasks),
        ")",
        f"submissions=({' '.join(str(share.submission) for share in tasks)})",
        *(chosen if runs_per_job < len(tasks) else ()),
    ]


def script_text(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines]) + "\n"
