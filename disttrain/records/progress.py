"""How a run is going."""

from __future__ import annotations

from disttrain.records.base import Record


class Progress(Record):
    """`progress.json`: live state, rewritten by rank 0 every few seconds."""

    attempt: int
    step: int
    steps: int
    emulated: bool = False
    """As `Metrics.emulated`."""
    samples_per_s: float | None
    loss: float | None
    eta_s: float | None
    gpu_utilization: float | None = None
    """Share of the time in which a kernel ran, mean over the GPUs of rank 0's node (the next two as well);
    null where NVML does not tell."""
    gpu_memory_used_bytes: float | None = None
    gpu_power_w: float | None = None
    cpu_percent: float | None = None
    """Processors busy with a rank, in percent of one: mean over the ranks of rank 0's node."""
    rss_bytes: float | None = None
    """Resident memory of a rank, likewise."""
    updated: float
    """Seconds since the epoch."""
