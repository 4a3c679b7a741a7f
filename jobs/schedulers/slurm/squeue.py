"""Jobs of the controller's queue, by the login node: squeue and scancel. Standard library only."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from jobs.schedulers.slurm.commands import (
    EPOCH,
    TIMEOUT_S,
    SlurmCommandError,
    pairs,
    query,
    query_or_none,
    refusal,
    setting,
    time,
)

PING_S = 5.0
_IDS_AT_ONCE = 10_000
_SQUEUE = ("squeue", "--noheader", "--array", "--states=all")


def answers(timeout_s: float = PING_S) -> bool:
    """Whether sbatch is installed and a Slurm controller answers."""
    if shutil.which("sbatch") is None:
        return False
    done = query_or_none(["scontrol", "ping"], timeout_s)
    return done is not None and " is UP" in done


def cluster_name() -> str | None:
    """Slurm's ClusterName; None if the controller does not answer."""
    return setting("ClusterName")


def comments() -> list[tuple[str, str]] | None:
    """(job id, comment) of all jobs that the controller lists, of any user, including ended jobs.

    Each task of an array has an entry.
    """
    return pairs(query_or_none([*_SQUEUE, "-o", "%i|%k"]))


@dataclass(frozen=True)
class QueueEntry:
    """A job as squeue lists it."""

    state: str
    start: float | None
    """Start or expected start, in seconds since the epoch."""
    reason: str | None
    """Why the job is pending."""
    comment: str = ""


def queue(job_ids: Iterable[str]) -> dict[str, QueueEntry]:
    """The jobs of these that the controller lists, with the other tasks of their arrays.

    Jobs of other users and jobs that ended minutes ago are included. `scontrol ping` is called first, because
    squeue retries for minutes if the controller is down. Raises `SlurmCommandError`.
    """
    whole = sorted({job_id.partition("_")[0] for job_id in job_ids})
    if not whole:
        return {}
    ping = query_or_none(["scontrol", "ping"], PING_S) or ""
    if " is DOWN" in ping and " is UP" not in ping:  # a backup controller may have taken over
        raise SlurmCommandError("scontrol ping: the controller is down")
    # squeue gets all jobs from the controller anyway. Linux limits one argument of a command to 128 KiB.
    selection = [f"--jobs={','.join(whole)}"] if len(whole) <= _IDS_AT_ONCE else []
    try:
        listing = query([*_SQUEUE, *selection, "-o", "%i|%T|%S|%r|%k"], environ=EPOCH)
    except SlurmCommandError as error:
        if "Invalid job id" in str(error):  # squeue refuses the id of a single job that it does not list
            return {}
        raise
    rows = [line.strip().split("|", 4) for line in listing.splitlines()]
    return {row[0]: QueueEntry(row[1], time(row[2]), _word(row[3]), row[4]) for row in rows if len(row) == 5}


def _word(text: str) -> str | None:
    return None if text in ("", "None", "(null)", "N/A") else text


def cancel(job_ids: Iterable[str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Cancel jobs; None on success, else Slurm's message in one line. Some of the jobs may be cancelled."""
    return refusal(["scancel", *job_ids], timeout_s)
