"""Measure communication on the ranks of one job: `torchrun ... -m disttrain.comm_bench`.

Collectives over sizes, and DDP steps. Rank 0 writes `comm-bench.json` into the run directory of the job
(`DISTTRAIN_RUN_DIR`), or into the working directory.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from disttrain.comm_bench.ddp_steps import Model, measure_steps
from disttrain.comm_bench.timing import conditions, last_to_arrive, parse, summary, timed
from disttrain.records.comm_bench import CollectiveTiming, CommBench
from disttrain.records.json_files import write_json
from disttrain.records.process_limits import usable_processors
from disttrain.records.run_directory import RunDir
from disttrain.runtime.device import machine_id
from disttrain.runtime.process_group import World, open_world
from disttrain.telemetry.profiled.profiled_steps import bus_factor

_SMALLEST = 4096
"""Bytes of the smallest message."""
_WARM_UP = 2
_MOST_CALLS = 20
_BYTES_OF_REPEAT = 2**22
"""A repeat of a small message is several calls after one another, at most `_MOST_CALLS` (as in nccl-tests),
up to so many bytes: the clock and the ranks' start blur a single short call."""
# torch 2.13 deprecates the older names
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "all_reduce": lambda whole, part: dist.all_reduce(whole),
    "all_gather": lambda whole, part: _ALL_GATHER(whole, part),
    "reduce_scatter": lambda whole, part: _REDUCE_SCATTER(part, whole),
}
"""Each collective, of a whole buffer and of the part of one rank."""


def sizes_up_to(largest: int, factor: int = 8) -> list[int]:
    """Message sizes in bytes: 4 KiB times powers of `factor`, then `largest`."""
    sizes, size = [], _SMALLEST
    while size < largest:
        sizes.append(size)
        size *= factor
    return [*sizes, largest]


def measure(world: World, model: Model, sizes: Sequence[int], repeats: int) -> CommBench:
    """Everything, on all ranks together, of at least two. `sizes`: bytes of the messages."""
    machines = world.all_gather_object(machine_id())
    compute, steps = measure_steps(world, model, repeats)
    return CommBench(
        **conditions(world),
        one_machine=len(set(machines)) == 1,
        cpu_count=len(usable_processors()),
        width=model.width,
        layers=model.layers,
        rows=model.rows,
        gradient_bytes=model.gradient_bytes,
        compute=compute,
        collectives=measure_collectives(world, sizes, repeats),
        steps=steps,
    )


def measure_collectives(world: World, sizes: Sequence[int], repeats: int) -> list[CollectiveTiming]:
    """Each collective at each size in bytes, rounded up to equal parts of float32. All ranks together."""
    timings = []
    for kind, call in _CALLS.items():
        for size in sizes:
            part = torch.zeros(-(-size // (4 * world.size)), device=world.device)
            whole = part.repeat(world.size)
            calls = max(1, min(_MOST_CALLS, _BYTES_OF_REPEAT // whole.nbytes))
            act = partial(_several, calls, partial(call, whole, part))
            seconds = [timed(world, act) / calls for _ in range(_WARM_UP + repeats)]
            time = summary(last_to_arrive(world, seconds[_WARM_UP:]))
            rate = whole.nbytes / time.median_s
            timings.append(
                CollectiveTiming(
                    kind=kind,
                    bytes=whole.nbytes,
                    time=time,
                    algorithm_bytes_per_s=rate,
                    bus_bytes_per_s=rate * bus_factor(kind, world.size),
                )
            )
    return timings


def _several(calls: int, call: Callable[[], object]) -> None:
    for _ in range(calls):
        call()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m disttrain.comm_bench", description=__doc__)
    parser.add_argument("--backend", default="auto", choices=["auto", "nccl", "gloo"])
    parser.add_argument("--max-mb", type=float, default=16.0, help="largest message in MiB")
    parser.add_argument("--size-factor", type=int, default=8, help="ratio of successive message sizes")
    parser.add_argument("--repeats", type=int, default=15, help="repeats after the warm-up")
    Model.add_arguments(parser)
    given, config = parse(parser)
    if config.world_size == 1:
        parser.error("one rank has no communication: start at least two")
    with open_world(config.with_values("parallel", backend=given.backend)) as world:
        sizes = sizes_up_to(int(given.max_mb * 2**20), given.size_factor)
        result = measure(world, Model.of(given), sizes, given.repeats)
        if world.rank == 0:
            run = RunDir(Path(os.environ.get("DISTTRAIN_RUN_DIR", ".")))
            write_json(run.comm_bench, result.model_dump(mode="json"))


if __name__ == "__main__":
    main()
