"""Calls of Slurm's commands with named fields and a time limit. Their `--json` output is not used.

The result None means that Slurm did not answer, never that a job does not exist. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jobs.node.allocation import AllocationFacts
from jobs.schedulers.inherited_variables import outside_job

TIMEOUT_S = 30.0
_JOB_TIMEOUT_S = 5.0
"""Time limit of a query by the job itself, which Slurm may kill within seconds."""
_AT_WORK = {"CONFIGURING", "RESIZING", "RUNNING", "SIGNALING", "SUSPENDED"}
EPOCH = {"SLURM_TIME_FORMAT": "%s"}
"""Makes Slurm's commands print seconds since the epoch. The default is local time without a time zone."""
PING_S = 5.0
_SQUEUE = ("squeue", "--noheader", "--array", "--states=all")


class SlurmCommandError(Exception):
    """A command failed or did not answer; the message is one line."""


def query(command: list[str], timeout_s: float = TIMEOUT_S, environ: Mapping[str, str] = {}) -> str:
    """Standard output of a command. Raises `SlurmCommandError`."""
    try:
        done = subprocess.run(
            command,
            env={**outside_job(os.environ), **environ},
            capture_output=True,
            text=True,
            errors="replace",  # a job's name or comment may have any bytes
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise SlurmCommandError(f"{command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SlurmCommandError(f"{command[0]}: no answer within {timeout_s:g} s") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise SlurmCommandError(
            said[-1].rpartition("error: ")[2] if said else f"{command[0]} failed without a message"
        )
    return done.stdout


def query_or_none(
    command: list[str], timeout_s: float = TIMEOUT_S, environ: Mapping[str, str] = {}
) -> str | None:
    """Standard output of a command; None if `query` raises."""
    try:
        return query(command, timeout_s, environ)
    except SlurmCommandError:
        return None


def answers(timeout_s: float = PING_S) -> bool:
    """Whether sbatch is installed and a Slurm controller answers."""
    if shutil.which("sbatch") is None:
        return False
    done = query_or_none(["scontrol", "ping"], timeout_s)
    return done is not None and " is UP" in done


def comments() -> list[tuple[str, str]] | None:
    """(job id, comment) of all jobs that the controller lists, of any user, including ended jobs.

    Each task of an array has an entry.
    """
    return _pairs(query_or_none([*_SQUEUE, "-o", "%i|%k"]))


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
    try:
        listing = query([*_SQUEUE, f"--jobs={','.join(whole)}", "-o", "%i|%T|%S|%r|%k"], environ=EPOCH)
    except SlurmCommandError as error:
        if "Invalid job id" in str(error):  # squeue refuses the id of a single job that it does not list
            return {}
        raise
    rows = [line.strip().split("|", 4) for line in listing.splitlines()]
    return {row[0]: QueueEntry(row[1], time(row[2]), word(row[3]), row[4]) for row in rows if len(row) == 5}


def time(text: str) -> float | None:
    """A time as Slurm prints it under `EPOCH`; None for words such as `Unknown`."""
    return float(text) if text.isdigit() else None


def word(text: str) -> str | None:
    return None if text in ("", "None", "(null)", "N/A") else text


def cancel(job_ids: Iterable[str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Cancel jobs; None on success, else Slurm's message in one line. Some of the jobs may be cancelled."""
    try:
        query(["scancel", *job_ids], timeout_s)
    except SlurmCommandError as why:
        return str(why)
    return None


def hostnames(nodelist: str) -> list[str] | None:
    """Names of the nodes in a node list, in Slurm's order."""
    listing = query_or_none(["scontrol", "show", "hostnames", nodelist])
    return None if listing is None else listing.split()


def describe(job_id: str) -> str | None:
    """Output of `scontrol show job -d`."""
    return query_or_none(["scontrol", "show", "job", "-d", job_id], timeout_s=10)


def job(job_id: str) -> AllocationFacts | None:
    """The state of one job; a query by the job itself."""
    squeue = ["squeue", "--noheader", "--states=all", "--jobs", job_id]
    listing = query_or_none(
        [*squeue, "-O", "State:32,RestartCnt:12,EndTime:24,Reason:64"], _JOB_TIMEOUT_S, EPOCH
    )
    words = listing.split() if listing else []
    if len(words) < 4 or not words[1].isdigit():
        return None
    state, restarts, end, reason = words[:4]
    return AllocationFacts(
        running=state in _AT_WORK,
        restarts=int(restarts),
        end=float(end) if end.isdigit() else None,
        timed_out=reason == "TimeLimit",
    )


def time_limit_min(job_id: str) -> int | None:
    """Time limit of a job in whole minutes; None without a limit, or if Slurm does not answer."""
    listing = (
        query_or_none(["squeue", "--noheader", "--states=all", "--jobs", job_id, "-o", "%l"], _JOB_TIMEOUT_S)
        or ""
    )
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):\d\d", listing.strip())
    if found is None:
        return None
    days, hours, minutes = (int(number or 0) for number in found.groups())
    return (24 * days + hours) * 60 + minutes


def nodes_down(nodelist: str) -> list[str]:
    """Nodes of this list that are down; empty if the controller does not answer."""
    pairs = _pairs(
        query_or_none(["sinfo", "--noheader", "--Node", "--nodes", nodelist, "-o", "%N|%T"], _JOB_TIMEOUT_S)
    )
    return sorted({node for node, state in pairs or [] if state.startswith("down") or state.endswith("*")})


def kill_wait_s() -> float | None:
    """Seconds from SIGTERM to SIGKILL (Slurm's KillWait); None if the controller does not answer."""
    found = re.match(r"\d+", _setting("KillWait") or "")
    return float(found[0]) if found else None


def cluster_name() -> str | None:
    """Slurm's ClusterName; None if the controller does not answer."""
    return _setting("ClusterName")


def _setting(name: str) -> str | None:
    """A value in the controller's configuration; None if the controller does not answer."""
    settings = query_or_none(["scontrol", "show", "config"], _JOB_TIMEOUT_S) or ""
    found = re.search(rf"^{name}\s*=\s*(\S+)", settings, re.MULTILINE)
    return found[1] if found else None


def requeue(job_id: str) -> str | None:
    """Requeue a job; None on success, else Slurm's message in one line."""
    return _refusal(["scontrol", "requeue", job_id])


def update(job_id: str, *settings: str) -> str | None:
    """Change settings of a pending job, such as `StartTime=now+60`; None on success, else Slurm's message."""
    return _refusal(["scontrol", "update", f"JobId={job_id}", *settings])


def _refusal(command: list[str]) -> str | None:
    try:
        query(command)
    except SlurmCommandError as why:
        return str(why)
    return None


def _pairs(listing: str | None) -> list[tuple[str, str]] | None:
    if listing is None:
        return None
    lines = [line.strip().partition("|") for line in listing.splitlines()]
    return [(left, right) for left, bar, right in lines if bar]
