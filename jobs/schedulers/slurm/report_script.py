"""Render the batch script of a report job, which starts after other jobs have ended. Pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.schedulers.slurm.batch_script import check_path, directives
from jobs.schedulers.slurm.quoting import file_pattern
from jobs.schedulers.slurm.setup_lines import job_setup
from jobs.schedulers.slurm.site_profile import Profile

_TIME_MIN = 15
_MEMORY = "1G"


@dataclass(frozen=True)
class ReportScript:
    """Fields of the script: one task on one processor."""

    name: str
    comment: str
    """Tag by which `find` identifies the job if its receipt is lost."""
    after: Sequence[str]
    """Ids of the jobs to wait for (`afterany`). A requeued job has not ended."""
    command: Sequence[str]
    """Arguments of Python."""
    logs: Path
    python: str
    profile: Profile


def render_report_script(job: ReportScript) -> str:
    """The text of the script. Raises `ConfigError` for a path that a script cannot contain."""
    check_path("--runs", job.logs)
    profile = job.profile
    options: dict[str, str | int | bool | None] = {
        "job-name": job.name,
        "comment": job.comment,
        "output": f"{file_pattern(str(job.logs))}/%j.log",
        "dependency": ":".join(["afterany", *job.after]) if job.after else None,
        "kill-on-invalid-dep": "yes" if job.after else None,
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": 1,
        "mem": _MEMORY,
        "time": _TIME_MIN,
        "requeue": True,
        "open-mode": "append",
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "reservation": profile.reservation,
        "wckey": profile.wckey,
    }
    # `python` of a profile with a container is a path in the image; this job runs without a container.
    python = job.python if profile.container else profile.python or job.python
    lines = [
        "#!/bin/bash",
        *directives(options),
        "",
        *job_setup(profile),
        *_mail(profile),
        # Without `command`, the shell would read a path with `=` as an assignment.
        f"command {shlex.join([python, *job.command])}",
        "",
    ]
    return "\n".join(lines)


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
