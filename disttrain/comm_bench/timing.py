"""Durations of operations that all ranks begin together, and the conditions that a result states."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from disttrain.records.comm_bench import Timing
from disttrain.runtime.device import device_name, nccl_version
from disttrain.runtime.process_group import World

CONFIDENCE = 0.95


def conditions(world: World) -> dict[str, Any]:
    """Conditions of a measurement, as in `CommBench` and `FabricAb`."""
    return {
        "device": device_name(world.device),
        "backend": world.backend or "",
        "nodes": world.nodes,
        "ranks_per_node": world.local_size,
        "torch": torch.__version__,
        "nccl": nccl_version(),
    }


def timed(world: World, act: Callable[[], object]) -> float:
    """Seconds of `act` on this rank, from the instant at which all ranks had arrived to the end of the
    device's work. All ranks together."""
    _finish(world)
    world.all_reduce_max([0.0])  # between hosts: each rank leaves when the last one has come
    began = time.perf_counter()
    act()
    _finish(world)
    return time.perf_counter() - began


def slowest(world: World, seconds: Sequence[float]) -> list[float]:
    """The maximum over ranks of each repeat. All ranks together."""
    return world.all_reduce_max(seconds)


def last_to_arrive(world: World, seconds: Sequence[float]) -> list[float]:
    """The minimum over ranks of each repeat: the duration without waiting for a peer. All ranks together."""
    return [-value for value in world.all_reduce_max([-value for value in seconds])]


def summary(seconds: Sequence[float]) -> Timing:
    """The median of the repeats and its interval."""
    median, low, high = median_interval(seconds)
    return Timing(median_s=median, low_s=low, high_s=high, repeats=len(seconds))


def median_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The median, and the ends of its interval, which are None for too few values."""
    ordered = sorted(values)
    ends = interval_ranks(len(ordered))
    low, high = (ordered[ends[0]], ordered[ends[1]]) if ends else (None, None)
    return statistics.median(ordered), low, high


def interval_ranks(count: int) -> tuple[int, int] | None:
    """Positions among `count` ordered values that enclose the median with at least `CONFIDENCE`; None if none
    do.

    The number of values below the median is binomial with p = 1/2 (Conover, Practical Nonparametric
    Statistics, 3.2).
    """
    outside, found = 0.0, None
    for below in range(count // 2):
        outside += 2 * math.comb(count, below) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        found = (below, count - 1 - below)
    return found


def _finish(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
