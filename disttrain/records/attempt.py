"""Records of an attempt: its start and end, an error of a rank, live progress, and the outcome of the run."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Record
from disttrain.records.exit_causes import Cause, Next


class AttemptRecord(Record):
    """`attempts/NNN/attempt.json`: start and end of one attempt."""

    attempt: int
    submission: int
    """Number of the submission (see `jobs.core.journal`) that this attempt claimed."""
    cluster: Literal["local", "slurm"]
    job_id: str | None
    nodes: list[str]
    host: str
    """Host of node 0's agent, or of the local supervisor."""
    pid: int
    pid_started: float
    """Start time of process `pid`, in seconds since the epoch: distinguishes it from a later process with the
    same pid."""
    restart: int = 0
    """Earlier starts of its Slurm job: a requeued job keeps its id."""
    checkpoint_before: int | None = None
    """Step of the newest checkpoint at the start; null without one."""
    checkpoint_after: int | None = None
    """Step of the newest checkpoint at the end."""
    code_hash: str
    cpu_count: int
    """Processors that this attempt's ranks may use, on the first node."""
    submitted: str | None = None
    started: str
    ended: str | None = None
    cause: Cause | None = None
    message: str | None = None
    """One line: the first error, with its rank."""
    exit_codes: dict[str, int] = {}
    """Exit code of each node's torchrun, by node rank."""
    first_failed_rank: int | None = None
    """Null where the attempt ended otherwise, or its files do not show the rank."""
    next: Next = None
    failed_nodes: list[str] = []
    """Hosts on which the failure began. The job's next start excludes them."""


class RankError(Record):
    """`error-RRRRR.json`: the exception that ended a rank."""

    rank: int
    time: float
    """Seconds since the epoch. The earliest error of an attempt counts as its cause."""
    kind: str
    message: str
    cause: Cause
    traceback: str


class Outcome(Record):
    """`DONE` or `FAILED`: the end of the run."""

    cause: Cause
    attempt: int
    message: str | None = None
    ended: str
    retryable: bool
    """Whether the same command may start the run again."""
    next: Next = None
    """`requeue`: the job requeues itself, so the run goes on."""


class Progress(Record):
    """`progress.json`: live state; rank 0 rewrites it every second at first, later every minute."""

    attempt: int
    step: int
    steps: int
    emulated: bool = False
    """See `Metrics.emulated`."""
    samples_per_s: float | None
    """Throughput of the newest second or so, without validations; at the end, that of `Metrics`."""
    mean_samples_per_s: float | None = None
    """Throughput over the measured steps so far, of rank 0; at the end, that of `Metrics`. Null until the
    first step after the warm-up."""
    loss: float | None
    eta_s: float | None
    gpu_utilization: float | None = None
    """Fraction of the time in which a kernel ran: mean over the GPUs of rank 0's node, as the next two. Null
    where NVML does not report it."""
    gpu_memory_used_bytes: float | None = None
    gpu_power_w: float | None = None
    cpu_percent: float | None = None
    """Processor time of one rank, in percent of one processor: mean over the ranks of rank 0's node."""
    rss_bytes: float | None = None
    """Resident memory of one rank: mean over the ranks of rank 0's node."""
    updated: float
    """Seconds since the epoch."""
