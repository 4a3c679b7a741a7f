"""Duration of a collective at any size, from measured ones.

A ring moves n bytes over N members in k steps, each with a chunk of n / N bytes: k = 2 (N - 1) for an
all-reduce, N - 1 for an all-gather or a reduce-scatter. The seconds of one step depend on the chunk alone, so
durations at one N give those at another:

    t(n, N) = k(N) s(n / N)

NCCL's efficiency follows the chunk in the same way (SimAI's published ratios: within 1.8 % at twice and 4.9 %
at four times the measured nodes, for chunks in the measured range). Members are ranks under gloo, whose ring
joins all ranks, and nodes under NCCL, whose rings cross each node's adapters in parallel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from disttrain.records.comm_bench import CommBench

_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Steps of a ring for each member beyond the first."""


class BelowMeasured(ValueError):
    """A chunk smaller than the smallest measured one, whose latency is not known."""

    def __init__(self, chunk: float, smallest: float) -> None:
        super().__init__(f"chunks of {chunk / 1024:.3g} KiB are below the measured {smallest / 1024:.3g} KiB")


@dataclass(frozen=True)
class RingTimes:
    """Measured seconds of one step of a ring by chunk, for each kind of collective."""

    backend: str
    steps: Mapping[str, tuple[tuple[float, float], ...]]
    """Bytes of a chunk and seconds, smallest first, by kind."""

    def seconds(self, kind: str, size: float, members: int) -> float:
        """Duration of a collective of `size` bytes over `members`.

        Raises:
            BelowMeasured: its chunk is smaller than the smallest measured one.
            KeyError: no collective of this kind was measured.
        """
        chunk = size / members
        chunks, seconds = np.array(self.steps[kind]).T
        if chunk < chunks[0] * (1 - 1e-9):
            raise BelowMeasured(chunk, chunks[0])
        step_s = np.interp(chunk, chunks, seconds)
        if chunk > chunks[-1]:  # at the rate of the largest one
            step_s = seconds[-1] * chunk / chunks[-1]
        return float(_STEPS[kind] * (members - 1) * step_s)

    def members(self, ranks: int, nodes: int) -> int:
        """Members of the ring of a group of `ranks` on `nodes`."""
        return nodes if self.backend == "nccl" and nodes > 1 else ranks


def ring_times(measured: CommBench) -> RingTimes:
    """From the collectives of a communication benchmark on several nodes."""
    times = RingTimes(measured.backend, {})
    members = times.members(measured.nodes * measured.ranks_per_node, measured.nodes)
    steps: dict[str, dict[float, float]] = {}
    for each in measured.collectives:
        seconds = each.time.median_s / (_STEPS[each.kind] * (members - 1))
        steps.setdefault(each.kind, {})[each.bytes / members] = seconds
    return RingTimes(times.backend, {kind: tuple(sorted(of.items())) for kind, of in steps.items()})
