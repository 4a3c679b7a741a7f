"""The choice of profiled steps, and means of their collectives over steps and ranks. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from disttrain.records.communication import CollectiveSummary, CommSample, CommSummary

METHOD = "profiler_samples"
LARGEST_SHARE = 20
"""At most one step in this many is profiled."""


def steps_to_profile(count: int, warmup: int, steps: int) -> frozenset[int]:
    """`count` evenly spaced steps after the warm-up, but at most one in `LARGEST_SHARE`."""
    first, last = warmup + 1, steps
    count = min(count, (last - first + 1) // LARGEST_SHARE)
    return frozenset(first + (last - first + 1) * (2 * i + 1) // (2 * count) for i in range(count))


def comm_summary(samples: Sequence[Sequence[CommSample]], ranks: int) -> CommSummary | None:
    """Means over `samples`, which hold for each step the records of all ranks; None without collectives.

    All ranks have the same collectives in a step. An early rank waits inside the collective, so the transfer
    time is the minimum over the ranks of its process group.
    """
    steps = [step for step in samples if step[0].collectives]
    if not steps:
        return None
    newest = layout(steps[-1][0])
    collectives = _collectives([step for step in steps if layout(step[0]) == newest], ranks)
    known = all(each.bytes is not None for each in collectives)

    def mean(name: str) -> float:
        return fmean(getattr(sample, name) for step in steps for sample in step)

    def bus_bytes(sample: CommSample) -> float:
        return sum(
            bus_factor(each.kind, each.ranks or ranks) * (each.bytes or 0) for each in sample.collectives
        )

    return CommSummary(
        method=METHOD,
        sampled_steps=len(steps),
        count=len(collectives),
        bytes=sum(each.bytes or 0 for each in collectives) if known else None,
        total_s=mean("total_s"),
        hidden_s=mean("hidden_s"),
        exposed_s=mean("exposed_s"),
        compute_s=mean("compute_s"),
        bus_bytes_per_s=fmean(bus_bytes(step[0]) / min(rank.total_s for rank in step) for step in steps)
        if known
        else None,
        collectives=collectives,
    )


def layout(sample: CommSample) -> list[tuple[str, int, int | None]]:
    """Kind, bucket and bytes of each collective in order; equal on all ranks."""
    return [(each.kind, each.bucket, each.bytes) for each in sample.collectives]


def _collectives(steps: Sequence[Sequence[CommSample]], ranks: int) -> list[CollectiveSummary]:
    summaries = []
    for index, first in enumerate(steps[0][0].collectives):
        calls = [[rank.collectives[index] for rank in step] for step in steps]

        def mean(name: str, calls: Iterable[Iterable[object]] = calls) -> float:
            return fmean(getattr(call, name) for step in calls for call in step)

        size = first.ranks or ranks
        groups = groups_of_ranks(first.dimension, size, ranks)
        transfer_s = fmean(min(step[rank].duration_s for rank in group) for step in calls for group in groups)
        rate = first.bytes / transfer_s if first.bytes and transfer_s else None
        summaries.append(
            CollectiveSummary(
                **first.model_dump(include={"kind", "bucket", "bytes", "ranks", "dimension"}),
                total_s=mean("duration_s"),
                hidden_s=mean("hidden_s"),
                exposed_s=mean("exposed_s"),
                transfer_s=transfer_s,
                algorithm_bytes_per_s=rate,
                bus_bytes_per_s=rate * bus_factor(first.kind, size) if rate else None,
            )
        )
    return summaries


def groups_of_ranks(dimension: str, size: int, ranks: int) -> list[range]:
    """The process groups of a collective's `dimension`, as world ranks: `size` consecutive ranks are a shard
    group, and ranks at equal places of the shard groups are a replicate group (`parallel.mesh.Mesh`)."""
    if dimension == "shard":
        return [range(first, first + size) for first in range(0, ranks, size)]
    if dimension == "replicate":
        return [range(first, ranks, ranks // size) for first in range(ranks // size)]
    return [range(ranks)]


def bus_factor(kind: str, ranks: int) -> float:
    """Bus bandwidth / algorithm bandwidth as defined in PERFORMANCE.md of nccl-tests. Bus bandwidth is
    comparable with the rate of a link at any number of ranks."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0
