"""Calls of Slurm's commands with named fields and a time limit. Their `--json` output is not used.

The result None means that Slurm did not answer, never that a job does not exist. Standard library only.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from jobs.node.allocation import AllocationFacts
from jobs.schedulers.inherited_variables import outside_job

TIMEOUT_S = 30.0
_JOB_TIMEOUT_S = 5.0
"""Time limit of a query by the job itself, which Slurm may kill within seconds."""
_AT_WORK = {"CONFIGURING", "RESIZING", "RUNNING", "SIGNALING", "SUSPENDED"}
_SHELL_ENDED = re.compile("JobLaunchFailure|RaisedSignal|NonZeroExitCode")
"""Reasons of a job whose batch shell was killed or exited. scancel leaves none."""
EPOCH = {"SLURM_TIME_FORMAT": "%s"}
"""Makes Slurm's commands print seconds since the epoch. The default is local time without a time zone."""


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


def time(text: str) -> float | None:
    """A time as Slurm prints it under `EPOCH`; None for words such as `Unknown`."""
    return float(text) if text.isdigit() else None


def hostnames(nodelist: str) -> list[str] | None:
    """Names of the nodes in a node list, in Slurm's order."""
    listing = query_or_none(["scontrol", "show", "hostnames", nodelist])
    return None if listing is None else listing.split()


def node_names() -> list[str] | None:
    """Names of all nodes in partitions, hidden ones too; None if Slurm does not answer."""
    listing = query_or_none(["sinfo", "--noheader", "--all", "--Node", "-o", "%N"], timeout_s=10)
    return None if listing is None else sorted(set(listing.split()))


def describe(job_id: str) -> str | None:
    """Output of `scontrol show job -d`."""
    return query_or_none(["scontrol", "show", "job", "-d", job_id], timeout_s=10)


def job(job_id: str, timeout_s: float = _JOB_TIMEOUT_S) -> AllocationFacts | None:
    """The state of one job; a query by the job itself."""
    squeue = ["squeue", "--noheader", "--states=all", "--jobs", job_id]
    listing = query_or_none([*squeue, "-O", "State:32,RestartCnt:12,EndTime:24,Reason:64"], timeout_s, EPOCH)
    words = listing.split() if listing else []
    if len(words) < 4 or not words[1].isdigit():
        return None
    state, restarts, end, reason = words[:4]
    return AllocationFacts(
        running=state in _AT_WORK,
        restarts=int(restarts),
        end=float(end) if end.isdigit() else None,
        end_cause="timeout" if reason == "TimeLimit" else "lost" if _SHELL_ENDED.match(reason) else None,
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
    states = pairs(
        query_or_none(["sinfo", "--noheader", "--Node", "--nodes", nodelist, "-o", "%N|%T"], _JOB_TIMEOUT_S)
    )
    return sorted({node for node, state in states or [] if state.startswith("down") or state.endswith("*")})


def excluded_nodes(job_id: str) -> list[str] | None:
    """Nodes that a job excludes; None if Slurm does not answer."""
    found = re.search(r"ExcNodeList=(\S+)", describe(job_id) or "")
    if found is None:
        return None
    return [] if found[1] == "(null)" else hostnames(found[1])


def script_refusal(script: Path, *options: str) -> str | None:
    """Test a batch script without submitting it; None if a job could start, else Slurm's message."""
    return refusal(["sbatch", "--test-only", *options, str(script)])


def controller_time() -> float | None:
    """The controller's clock, in seconds since the epoch; None if the controller does not answer."""
    found = re.search(
        r"^sdiag output at .*\((\d+)\)", query_or_none(["sdiag"], _JOB_TIMEOUT_S) or "", re.MULTILINE
    )
    return float(found[1]) if found else None


def number_setting(name: str) -> int | None:
    """The leading number of a setting such as KillWait; None if the controller does not answer."""
    found = re.match(r"\d+", setting(name) or "")
    return int(found[0]) if found else None


def setting(name: str) -> str | None:
    """A value in the controller's configuration; None if the controller does not answer."""
    settings = query_or_none(["scontrol", "show", "config"], _JOB_TIMEOUT_S) or ""
    found = re.search(rf"^{name}\s*=\s*(\S+)", settings, re.MULTILINE)
    return found[1] if found else None


def requeue(job_id: str) -> str | None:
    """Requeue a job; None on success, else Slurm's message in one line."""
    return refusal(["scontrol", "requeue", job_id])


def update(job_id: str, *settings: str) -> str | None:
    """Change settings of a pending job, such as `StartTime=now+60`; None on success, else Slurm's message."""
    return refusal(["scontrol", "update", f"JobId={job_id}", *settings])


def refusal(command: list[str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Slurm's message in one line if it refuses a command or does not answer, else None."""
    try:
        query(command, timeout_s)
    except SlurmCommandError as why:
        return str(why)
    return None


def pairs(listing: str | None) -> list[tuple[str, str]] | None:
    """Lines of two fields with `|` between them."""
    if listing is None:
        return None
    lines = [line.strip().partition("|") for line in listing.splitlines()]
    return [(left, right) for left, bar, right in lines if bar]
