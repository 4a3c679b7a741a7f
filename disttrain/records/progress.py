"""Live progress of a run."""

from __future__ import annotations

from disttrain.records.base import Record


class Progress(Record):
    """`progress.json`: live state; rank 0 rewrites it every second at first, later every minute."""

    attempt: int
    step: int
    steps: int
    emulated: bool = False
    """See `Metrics.emulated`."""
    samples_per_s: float | None
    """While the run goes on, since the previous write, without validations; at the end, that of `Metrics`."""
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
