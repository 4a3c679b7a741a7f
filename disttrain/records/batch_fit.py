"""The local batch size that `train.local_batch_size: auto` found, and the probes that led to it."""

from __future__ import annotations

from disttrain.records.base import Record


class BatchProbe(Record):
    """Some training steps with one local batch size."""

    local_batch_size: int
    peak_bytes: int
    """Maximum over ranks, optimizer state included."""
    samples_per_s: float
    """Over all ranks, at the pace of the slowest one."""


class BatchFit(Record):
    """The chosen local batch size and its reasons. A resumed run keeps the size of its checkpoint."""

    local_batch_size: int
    accumulation: int
    limit_bytes: int
    """Memory of one rank; minimum over ranks."""
    limit_source: str
    """Origin of the limit, such as `memory.max` of a control group."""
    reserve: float
    """Fraction of the limit that no probe may use."""
    fixed_bytes: int
    """Memory that does not depend on the batch: `a` of peak = a + b x local batch size."""
    bytes_per_sample: float
    """`b` of peak = a + b x local batch size."""
    probes: list[BatchProbe]
    out_of_memory: list[int] = []
    """Local batch sizes whose probe ran out of memory."""
    verified_steps: int
    """Steps with the chosen size, followed by a validation, after which it was accepted."""
    verified_peak_bytes: int
    seconds: float
    """Duration of the search."""
