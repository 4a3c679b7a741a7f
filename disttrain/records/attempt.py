"""One start of a run, what a rank raised in it, and how the run ended."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Record
from disttrain.records.causes import Cause, Next


class AttemptRecord(Record):
    """`attempts/NNN/attempt.json`: one start of the run and how it ended."""

    attempt: int
    submission: int
    """The submission (see `jobs.core.journal`) that this attempt claimed."""
    cluster: Literal["local", "slurm"]
    job_id: str | None
    nodes: list[str]
    host: str
    """Where node 0's agent (or the local supervisor) runs."""
    pid: int
    pid_started: float
    """Start time of that process since the epoch, so that a recycled pid is not mistaken for it."""
    restart: int = 0
    """How often its Slurm job had been started before: one job id goes through all requeues."""
    checkpoint_before: int | None = None
    """Step of the newest checkpoint when it started; null if there was none."""
    checkpoint_after: int | None = None
    """Step of the newest checkpoint when it ended."""
    code_hash: str
    cpu_count: int
    """Processors this attempt's ranks could use, on the first node."""
    submitted: str | None = None
    started: str
    ended: str | None = None
    cause: Cause | None = None
    message: str | None = None
    """One line: what went wrong, with the rank it began on."""
    exit_codes: dict[str, int] = {}
    """Exit code of each node's torchrun, by node rank."""
    next: Next = None


class RankError(Record):
    """`error-RRRRR.json`: what a rank raised."""

    rank: int
    time: float
    """Seconds since the epoch; the earliest one is taken for the cause."""
    kind: str
    message: str
    cause: Cause
    traceback: str


class Outcome(Record):
    """`DONE` or `FAILED`: how the run ended."""

    cause: Cause
    attempt: int
    message: str | None = None
    ended: str
    retryable: bool
    """Whether the same command, given again, may start it again."""
    next: Next = None
    """`requeue`: its job was to be started again by itself, so this is not the end."""
