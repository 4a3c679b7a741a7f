"""Collectives of sampled steps: as one rank saw them, and over steps and ranks."""

from __future__ import annotations

from disttrain.records.base import Record


class SampledCollective(Record):
    """One collective operation of a sampled step, as one rank saw it."""

    kind: str
    """`all_reduce`, `all_gather`, ..."""
    bucket: int
    """Number among those of its kind in this step, by their begin."""
    bytes: int | None
    """Of the larger of input and output on one rank; null where the profiler does not tell."""
    start_s: float
    """Since the step began."""
    duration_s: float
    """Queueing and waiting for peers included."""
    hidden_s: float
    """While this rank computed."""
    exposed_s: float


class CommSample(Record):
    """One line of `comm-RRRRR.jsonl`: one rank's communication in one sampled step.

    Collectives may run at the same time: totals are of merged intervals, never sums of durations.
    """

    step: int
    step_s: float
    compute_s: float
    total_s: float
    """While any collective was on its way."""
    hidden_s: float
    """While one was on its way and this rank computed."""
    exposed_s: float
    """`total_s` - `hidden_s`."""
    collectives: list[SampledCollective]


class CollectiveSummary(Record):
    """One collective of a step: means over sampled steps and ranks."""

    kind: str
    bucket: int
    bytes: int | None
    total_s: float
    hidden_s: float
    exposed_s: float
    transfer_s: float
    """The least over ranks, mean over steps: the rank that came last waited for nobody."""
    algorithm_bytes_per_s: float | None
    """`bytes` / `transfer_s`."""
    bus_bytes_per_s: float | None
    """Comparable with a link's rate: algorithm bandwidth x 2(N-1)/N for an all-reduce over N ranks,
    x (N-1)/N for all-gather and reduce-scatter, as nccl-tests defines it."""


class CommSummary(Record):
    """Communication of a step: means over sampled steps and ranks."""

    method: str
    sampled_steps: int
    count: int
    """Collectives in a step."""
    bytes: int | None
    """Moved by them on one rank, each counted as in `CollectiveSummary.bytes`."""
    total_s: float
    hidden_s: float
    exposed_s: float
    compute_s: float
    bus_bytes_per_s: float | None
    """All bus bytes of a step over the least time, over ranks, that any collective was on its way."""
    collectives: list[CollectiveSummary]
