"""Slurm's own commands, asked with named fields and a time limit; no `--json` of theirs is parsed.

None as an answer means that Slurm could not be asked, which is never the same as "there is no such job".
Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from jobs import environment

TIMEOUT_S = 30.0
MINE = ("--user", str(os.getuid()))
"""By number: a user's name in the environment need not be the one that Slurm knows."""


def ask(command: list[str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Standard output of a command, None if it could not be asked."""
    try:
        done = subprocess.run(
            command,
            env=environment.for_submission(os.environ),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def answers(timeout_s: float = 5.0) -> bool:
    """Whether a Slurm controller answers from here."""
    if shutil.which("sbatch") is None:
        return False
    done = ask(["scontrol", "ping"], timeout_s)
    return done is not None and " is UP" in done


def comments() -> list[tuple[str, str]] | None:
    """(job id, comment) of this user's jobs that the controller still knows, those that ended too; an array
    is one job for each of its tasks."""
    return _pairs(ask(["squeue", "--noheader", "--array", "--states=all", *MINE, "-o", "%i|%k"]))


def states() -> dict[str, str] | None:
    """The state of each of this user's jobs that the controller still knows."""
    pairs = _pairs(ask(["squeue", "--noheader", "--array", "--states=all", *MINE, "-o", "%i|%T"]))
    return None if pairs is None else dict(pairs)


def cancel(job_ids: list[str]) -> None:
    ask(["scancel", *job_ids])


def hostnames(nodelist: str) -> list[str] | None:
    """The nodes that a node list names, in Slurm's order."""
    listing = ask(["scontrol", "show", "hostnames", nodelist])
    return None if listing is None else listing.split()


def describe(job_id: str) -> str | None:
    """All that the controller says of a job, as it prints it."""
    return ask(["scontrol", "show", "job", "-d", job_id], timeout_s=10)


def _pairs(listing: str | None) -> list[tuple[str, str]] | None:
    if listing is None:
        return None
    lines = [line.strip().partition("|") for line in listing.splitlines()]
    return [(left, right) for left, bar, right in lines if bar]
