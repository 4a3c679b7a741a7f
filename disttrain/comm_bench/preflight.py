"""All-reduce and links of a job before its training starts: `python -m disttrain.comm_bench.preflight OUT`.

The agents start one process for each rank, with torchrun's variables. Rank 0 writes the result. The sizes
are that of DDP's buckets and a large one. Each all-reduce is repeated as often as its first duration
allows, and left out if that is too long.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from disttrain.comm_bench.links import measure_rates
from disttrain.comm_bench.timing import last_to_arrive, timed
from disttrain.config.config_tree import Config
from disttrain.records.json_files import write_json
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import World, open_world
from disttrain.telemetry.profiled.profiled_steps import bus_factor

MESSAGE_BYTES = {"gloo": 2**20, "nccl": 16 * 2**20}
"""Size of the messages between neighbours."""
LARGE_BYTES = {"gloo": 16 * 2**20, "nccl": 2**30}
"""Size of the large all-reduce. NCCL reaches its ceiling at 1 GiB and more."""
_BUDGET_S = 2.0
"""Time for the repeats of one size."""
_MOST_REPEATS = 5
_COLLECTIVE_TIMEOUT_S = 45.0


def measure(world: World, bucket_bytes: int) -> dict[str, Any]:
    """The result, on all ranks together. Rates of links are those that this rank measured."""
    backend = str(world.backend)
    sizes = sorted({bucket_bytes, LARGE_BYTES[backend]})  # the first one predicts the time of the second
    results: list[dict[str, Any]] = []
    for size in sizes:
        if results and results[-1]["seconds"] * size / results[-1]["bytes"] > _BUDGET_S:
            break  # the estimate is equal on all ranks
        results.append(measure_all_reduce(world, size))
    links = [rate.model_dump() for rate in measure_rates(world, MESSAGE_BYTES[backend])]
    return {
        "backend": backend,
        "ranks": world.size,
        "all_reduce": results,
        "links": links,
        "message_bytes": MESSAGE_BYTES[backend],
    }


def measure_all_reduce(world: World, size: int) -> dict[str, Any]:
    """Fastest all-reduce of `size` bytes of float32 after one warm-up. All ranks together."""
    tensor = torch.zeros(max(1, size // 4), device=world.device)

    def once() -> float:
        (seconds,) = last_to_arrive(world, [timed(world, lambda: dist.all_reduce(tensor))])
        return seconds

    warm_up = once()  # with the set-up of connections
    repeats = max(1, min(_MOST_REPEATS, int(_BUDGET_S / max(warm_up, 1e-6))))
    seconds = min(once() for _ in range(repeats))
    count = 4 * tensor.numel()
    return {
        "bytes": count,
        "seconds": seconds,
        "bus_bytes_per_s": count / seconds * bus_factor("all_reduce", world.size),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m disttrain.comm_bench.preflight", description=__doc__)
    parser.add_argument("out", type=Path, help="file of the result")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "shared"])
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="bucket size of DDP in MiB")
    given = parser.parse_args()
    began = time.monotonic()
    info = rank_info()
    shape = {"nodes": info.nodes, "gpus_per_node": info.local_size, "device": given.device}
    job = {"collective_timeout_s": _COLLECTIVE_TIMEOUT_S}
    config = Config.model_validate({"resources": shape, "job": job, "precision": {"dtype": "fp32"}})
    with open_world(config) as world:
        found = measure(world, round(given.bucket_mb * 2**20))
        links = world.gather_object(found["links"])
        if links is not None:
            every = sorted((rate for rates in links for rate in rates), key=lambda each: each["source"])
            seconds = time.monotonic() - began
            write_json(given.out, {**found, "links": every, "seconds": seconds})


if __name__ == "__main__":
    main()
