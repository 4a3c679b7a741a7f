"""Records of collectives in profiled steps: of one rank, and summarised over steps and ranks."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Record


class SampledCollective(Record):
    """One collective of a profiled step on one rank. Durations in seconds."""

    kind: str
    """`all_reduce`, `all_gather`, ..."""
    bucket: int
    """Index among the collectives of its kind in this step, in order of start."""
    bytes: int | None
    """Size of the larger of input and output on one rank; null where the profiler does not report it."""
    ranks: int | None = None
    """Ranks of its process group; null in records of earlier versions: all ranks."""
    dimension: Literal["world", "shard", "replicate"] = "world"
    """Dimension of the mesh over which it runs under hybrid sharding; `world` elsewhere."""
    start_s: float
    """Start, in seconds since the step began."""
    duration_s: float
    """Duration, including queueing and waiting for peers."""
    hidden_s: float
    """Part of the duration during which this rank computed."""
    exposed_s: float


class CommSample(Record):
    """One line of `comm-RRRRR.jsonl`: communication of one rank in one profiled step, in seconds.

    Collectives may overlap, so totals are lengths of merged intervals, not sums of durations.
    """

    step: int
    step_s: float
    compute_s: float
    total_s: float
    """Time during which any collective was in progress."""
    hidden_s: float
    """Time during which a collective was in progress and this rank computed."""
    exposed_s: float
    """`total_s` - `hidden_s`."""
    collectives: list[SampledCollective]


class CollectiveSummary(Record):
    """One collective of a step: means over profiled steps and ranks."""

    kind: str
    bucket: int
    bytes: int | None
    ranks: int | None = None
    """As in `SampledCollective`."""
    dimension: Literal["world", "shard", "replicate"] = "world"
    """As in `SampledCollective`."""
    total_s: float
    hidden_s: float
    exposed_s: float
    transfer_s: float
    """Minimum duration over the ranks of a process group, mean over groups and steps: the last rank to arrive
    did not wait."""
    algorithm_bytes_per_s: float | None
    """`bytes` / `transfer_s`."""
    bus_bytes_per_s: float | None
    """Bus bandwidth as nccl-tests defines it, comparable with the rate of a link: algorithm bandwidth x
    2(N-1)/N for an all-reduce over N ranks, x (N-1)/N for all-gather and reduce-scatter."""


class CommSummary(Record):
    """Communication of a step: means over profiled steps and ranks."""

    method: str
    sampled_steps: int
    count: int
    """Collectives in a step."""
    bytes: int | None
    """Sum of `CollectiveSummary.bytes`: bytes per rank and step."""
    total_s: float
    hidden_s: float
    exposed_s: float
    compute_s: float
    bus_bytes_per_s: float | None
    """Bus bytes of a step / minimum over ranks of the time with a collective in progress."""
    collectives: list[CollectiveSummary]
