"""All-reduce, all-gather and reduce-scatter over sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from disttrain.comm_bench.timing import last_to_arrive, summary, timed
from disttrain.records.comm_bench import CollectiveTiming
from disttrain.runtime.process_group import World
from disttrain.telemetry.profiled.profiled_steps import bus_factor

KINDS = ("all_reduce", "all_gather", "reduce_scatter")
_WARM_UP = 2
# torch 2.13 deprecates the older names
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def measure_collectives(world: World, sizes: Sequence[int], repeats: int) -> list[CollectiveTiming]:
    """Each collective at each size in bytes, rounded up to equal parts of float32. All ranks together."""
    found = []
    for kind in KINDS:
        for size in sizes:
            elements = -(-size // (4 * world.size)) * world.size
            call = _call(kind, elements, world)
            seconds = [timed(world, call) for _ in range(_WARM_UP + repeats)][_WARM_UP:]
            time = summary(last_to_arrive(world, seconds))
            rate = 4 * elements / time.median_s
            found.append(
                CollectiveTiming(
                    kind=kind,
                    bytes=4 * elements,
                    time=time,
                    algorithm_bytes_per_s=rate,
                    bus_bytes_per_s=rate * bus_factor(kind, world.size),
                )
            )
    return found


def _call(kind: str, elements: int, world: World) -> Callable[[], object]:
    whole = torch.zeros(elements, device=world.device)
    part = torch.zeros(elements // world.size, device=world.device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if kind == "all_gather":
        return lambda: _ALL_GATHER(whole, part)
    return lambda: _REDUCE_SCATTER(part, whole)
