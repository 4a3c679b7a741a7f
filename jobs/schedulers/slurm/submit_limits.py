"""Limits on the number of jobs: from the controller's configuration, and from refusals of sbatch.

Limits of an account or a QOS are not read, because sbatch refuses the first job above such a limit with its
name. MaxJobCount is read, because sbatch waits for minutes when this limit is reached.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jobs.schedulers.interface import SubmitQuota
from jobs.schedulers.slurm import commands, squeue

DEFAULT_ARRAY = 1001
"""Slurm's default of MaxArraySize, for a controller that does not answer."""
_NAMED = re.compile(r"\b(?:Assoc|QOS)\w+")
_UNNAMED = "job submit limit"
"""Part of every refusal due to a limit of an association or QOS, be it on jobs, sizes or times."""
_ARRAY = "invalid job array specification"
"""Refusal of an array with more tasks than MaxArraySize, of which `DEFAULT_ARRAY` may be an overestimate."""


@dataclass(frozen=True)
class ControllerLimits:
    """Limits in the controller's configuration."""

    array: int | None = None
    """Tasks of one array."""
    jobs: int | None = None
    """Jobs of all users together, including those that ended minutes ago."""


def quota() -> SubmitQuota:
    """Number of jobs that the controller accepts now. If a query fails, its limit is left out."""
    if not squeue.answers():
        return SubmitQuota(array=DEFAULT_ARRAY)
    limits = parse_config(commands.query_or_none(["scontrol", "show", "config"]) or "")
    array = max(1, limits.array or 1)
    listed = None
    if limits.jobs is not None:
        listed = commands.query_or_none(["squeue", "--noheader", "--array", "--states=all", "-o", "%i"])
    if limits.jobs is None or listed is None:
        return SubmitQuota(array)
    left = max(0, limits.jobs - len(listed.split()))
    return SubmitQuota(array, left, f"the limit of {limits.jobs} jobs (MaxJobCount of the cluster)")


def exceeded_limit(message: str) -> str | None:
    """The limit on the number of jobs that caused a refusal of sbatch; None for other refusals."""
    named = _NAMED.search(message)
    if named is not None:
        return f"the limit of jobs ({named[0]})" if "Submit" in named[0] else None
    if _ARRAY in message.lower():
        return "the limit of tasks in an array (MaxArraySize)"
    return "the limit of jobs" if _UNNAMED in message.lower() else None


def parse_config(text: str) -> ControllerLimits:
    """Limits in the output of `scontrol show config`."""
    settings = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            settings[name.strip()] = value.strip()
    tasks = re.search(r"max_array_tasks=(\d+)", settings.get("SchedulerParameters", ""))
    arrays = [_number(settings.get("MaxArraySize", "")), _number(tasks[1]) if tasks else None]
    return ControllerLimits(
        array=min((size for size in arrays if size is not None), default=None),
        jobs=_number(settings.get("MaxJobCount", "")) or None,
    )


def _number(text: str) -> int | None:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None
