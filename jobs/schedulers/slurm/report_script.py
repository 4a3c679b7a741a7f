"""The batch script of a report job, which runs after other jobs have ended. Pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.schedulers.slurm import option_syntax
from jobs.schedulers.slurm.batch_script import check_path, directives, site
from jobs.schedulers.slurm.site_profile import Profile

_TIME_MIN = 15
_MEMORY = "1G"


@dataclass(frozen=True)
class ReportScript:
    """Fields of the script: one task on one processor."""

    name: str
    comment: str
    """Finds the job again when its receipt is lost."""
    after: Sequence[str]
    """Jobs to wait for, whatever their result. A requeued job has not ended."""
    command: Sequence[str]
    """Arguments of Python."""
    logs: Path
    python: str
    profile: Profile


def render_report_script(job: ReportScript) -> str:
    """The script that `sbatch` gets. Raises `ConfigError` for a path that no script can hold."""
    check_path("--runs", job.logs)
    profile = job.profile
    options: dict[str, str | int | bool | None] = {
        "job-name": job.name,
        "comment": job.comment,
        "output": f"{option_syntax.file_pattern(str(job.logs))}/%j.log",
        "dependency": ":".join(["afterany", *job.after]),
        "kill-on-invalid-dep": "yes",
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
    # A profile with a container has its Python in there; this is a job without one.
    python = job.python if profile.container else profile.python or job.python
    lines = [
        "#!/bin/bash",
        *directives(options),
        "",
        *site(profile),
        # `command` in front: a bare `x=1` would be an assignment.
        f"command {shlex.join([python, *job.command])}",
        "",
    ]
    return "\n".join(lines)
