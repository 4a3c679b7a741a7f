"""Statistics of the collectives in profiled steps: kind, bytes, duration, and the share hidden by compute.

A few steps, evenly spaced over the run, are profiled and excluded from all other figures. A hook on every
bucket would add hundreds of microseconds to each step instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from disttrain.records.communication import CollectiveSummary, CommSample, CommSummary, SampledCollective
from disttrain.runtime.json_lines import JsonLinesWriter
from disttrain.runtime.process_group import World
from disttrain.telemetry.trace_parsing import StepTrace, bus_factor, length, merged, overlap

METHOD = "profiler_samples"
LARGEST_SHARE = 20
"""At most one step in this many is profiled."""


def steps_to_profile(count: int, warmup: int, steps: int) -> frozenset[int]:
    """`count` evenly spaced steps after the warm-up, but at most one in `LARGEST_SHARE`."""
    first, last = warmup + 1, steps
    count = min(count, (last - first + 1) // LARGEST_SHARE)
    return frozenset(first + (last - first + 1) * (2 * i + 1) // (2 * count) for i in range(count))


def comm_sample(step: int, trace: StepTrace) -> CommSample:
    """One rank's record of a profiled step."""
    union = merged(each.interval for each in trace.collectives)
    total, hidden = length(union), overlap(union, trace.compute)
    seen: dict[str, int] = {}
    collectives = []
    for each in trace.collectives:
        number = seen[each.kind] = seen.get(each.kind, -1) + 1
        begin, end = each.interval
        hidden_s = overlap([each.interval], trace.compute)
        collectives.append(
            SampledCollective(
                kind=each.kind,
                bucket=number,
                bytes=each.bytes,
                ranks=each.ranks,
                dimension=each.dimension or "world",
                start_s=begin,
                duration_s=end - begin,
                hidden_s=hidden_s,
                exposed_s=end - begin - hidden_s,
            )
        )
    return CommSample(
        step=step,
        step_s=length([trace.step]),
        compute_s=length(trace.compute),
        total_s=total,
        hidden_s=hidden,
        exposed_s=total - hidden,
        collectives=collectives,
    )


class CollectiveStats:
    """Collects profiled steps: each rank writes its own to a file, rank 0 keeps those of all ranks."""

    def __init__(self, path: Path, world: World) -> None:
        self._path = path
        self._world = world
        self._seen: list[list[CommSample]] = []

    def add(self, sample: CommSample | None) -> None:
        """Add this rank's record of a step, None if it was lost. All ranks together.

        A step counts only if all ranks recorded the same collectives.
        """
        if sample is not None:
            file = JsonLinesWriter(self._path)
            file.add(sample.model_dump(mode="json"))
            file.close()
        ranks = [each for each in self._world.all_gather_object(sample) if each is not None]
        if self._world.rank == 0 and len(ranks) == self._world.size and len(set(map(_layout, ranks))) == 1:
            self._seen.append(ranks)

    def summary(self) -> CommSummary | None:
        """Means over profiled steps and ranks; None without any."""
        return comm_summary(self._seen, self._world.size)


def comm_summary(samples: list[list[CommSample]], ranks: int) -> CommSummary | None:
    """Means over `samples`, which hold for each step the records of all ranks; None without collectives.

    All ranks have the same collectives in a step. An early rank waits inside the collective, so the transfer
    time is the minimum over the ranks of its process group.
    """
    whole = [step for step in samples if step[0].collectives]
    if not whole:
        return None
    every = [rank for step in whole for rank in step]
    sizes = [each.bytes for each in whole[-1][0].collectives]
    known = all(size is not None for size in sizes)
    on_bus = [
        sum(bus_factor(each.kind, each.ranks or ranks) * (each.bytes or 0) for each in step[0].collectives)
        / min(rank.total_s for rank in step)
        for step in whole
    ]
    return CommSummary(
        method=METHOD,
        sampled_steps=len(whole),
        count=len(sizes),
        bytes=sum(size or 0 for size in sizes) if known else None,
        total_s=_mean(rank.total_s for rank in every),
        hidden_s=_mean(rank.hidden_s for rank in every),
        exposed_s=_mean(rank.exposed_s for rank in every),
        compute_s=_mean(rank.compute_s for rank in every),
        bus_bytes_per_s=_mean(on_bus) if known else None,
        collectives=_by_bucket([step for step in whole if _layout(step[0]) == _layout(whole[-1][0])], ranks),
    )


def _layout(sample: CommSample) -> tuple[tuple[str, int, int | None], ...]:
    """Kind, bucket and bytes of each collective in order; equal on all ranks."""
    return tuple((each.kind, each.bucket, each.bytes) for each in sample.collectives)


def _by_bucket(steps: list[list[CommSample]], ranks: int) -> list[CollectiveSummary]:
    found = []
    for place, (kind, bucket, size) in enumerate(_layout(steps[0][0])):
        seen = [[rank.collectives[place] for rank in step] for step in steps]
        every = [each for step in seen for each in step]
        first = seen[0][0]
        groups = groups_of_ranks(first.dimension, first.ranks or ranks, ranks)
        transfer_s = _mean(min(step[rank].duration_s for rank in group) for step in seen for group in groups)
        rate = size / transfer_s if size and transfer_s else None
        found.append(
            CollectiveSummary(
                kind=kind,
                bucket=bucket,
                bytes=size,
                ranks=first.ranks,
                dimension=first.dimension,
                total_s=_mean(each.duration_s for each in every),
                hidden_s=_mean(each.hidden_s for each in every),
                exposed_s=_mean(each.exposed_s for each in every),
                transfer_s=transfer_s,
                algorithm_bytes_per_s=rate,
                bus_bytes_per_s=rate * bus_factor(kind, first.ranks or ranks) if rate else None,
            )
        )
    return found


def groups_of_ranks(dimension: str, size: int, ranks: int) -> list[range]:
    """The process groups of a collective's `dimension`, as world ranks: `size` consecutive ranks are a shard
    group, and ranks at equal places of the shard groups are a replicate group (`parallel.mesh.Mesh`)."""
    if dimension == "shard":
        return [range(first, first + size) for first in range(0, ranks, size)]
    if dimension == "replicate":
        return [range(first, ranks, ranks // size) for first in range(ranks // size)]
    return [range(ranks)]


def _mean(values: Iterator[float] | list[float]) -> float:
    return float(np.mean(list(values)))
