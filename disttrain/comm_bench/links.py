"""Links and all-reduce of a job before its training starts: `python -m disttrain.comm_bench.links OUT`.

The agents start one process for each rank, with torchrun's variables. Rank 0 writes the result.

A collective is as slow as its slowest link, and all ranks leave it together. So step records show a slow link
as transfer on every rank; only rates of single links name it. The first rank of each node takes part:

    target -> source    ready: the message does not wait for a late target
    source -> target    the message, timed by the source
    target -> source    acknowledgement

The sizes of the all-reduce are that of DDP's buckets and a large one. Each is repeated as often as its first
duration allows, and left out if that is too long.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from disttrain.comm_bench.timing import last_to_arrive, parse, timed
from disttrain.records.json_files import write_json
from disttrain.records.node import NodePairRate
from disttrain.runtime.process_group import World, open_world
from disttrain.telemetry.profiled.profiled_steps import bus_factor

MESSAGES = 4
"""Messages in each direction; the fastest counts, because disturbances only delay."""
MESSAGE_BYTES = {"gloo": 2**20, "nccl": 16 * 2**20}
"""Size of the messages between neighbours."""
LARGE_BYTES = {"gloo": 16 * 2**20, "nccl": 2**30}
"""Size of the large all-reduce. NCCL reaches its ceiling at 1 GiB and more."""
_BUDGET_S = 2.0
"""Time for the repeats of one size."""
_MOST_REPEATS = 5
_COLLECTIVE_TIMEOUT_S = 45.0


def neighbours(nodes: int) -> list[tuple[int, int]]:
    """Pairs of neighbours in a ring of nodes. In this order disjoint pairs are measured together, in two or
    three rounds whatever the number of nodes."""
    pairs = [(node, (node + 1) % nodes) for node in range(nodes if nodes > 2 else nodes - 1)]
    even = nodes // 2 * 2
    return pairs[:even:2] + pairs[1:even:2] + pairs[even:]


def measure_rates(world: World, size: int) -> list[NodePairRate]:
    """Rates, by messages of `size` bytes, that this rank measured as a source. Collective: all ranks call it,
    but only the first of each node takes part."""
    if world.local_rank != 0:
        return []
    node = world.rank // world.local_size
    device = world.device if world.backend == "nccl" else "cpu"  # gloo sends no tensor of a GPU
    message = torch.zeros(size, dtype=torch.uint8, device=device)
    signal = torch.zeros(1, dtype=torch.uint8, device=device)
    rates = []
    for first, second in neighbours(world.nodes):
        for source, target in ((first, second), (second, first)):
            if node == source:
                seconds = min(_send(message, signal, target * world.local_size) for _ in range(MESSAGES))
                rates.append(NodePairRate(source=source, target=target, bytes_per_s=size / seconds))
            elif node == target:
                peer = source * world.local_size
                for _ in range(MESSAGES):
                    _exchange(dist.isend, signal, peer)
                    _exchange(dist.irecv, message, peer)
                    _exchange(dist.isend, signal, peer)
    return rates


def _send(message: torch.Tensor, signal: torch.Tensor, peer: int) -> float:
    """Seconds of a message to `peer`."""
    _exchange(dist.irecv, signal, peer)
    began = time.perf_counter()
    _exchange(dist.isend, message, peer)
    _exchange(dist.irecv, signal, peer)
    return time.perf_counter() - began


def _exchange(operation: Callable[..., Any], tensor: torch.Tensor, peer: int) -> None:
    # batched, because NCCL would make a communicator for each pair of an unbatched message
    for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer)]):
        work.wait()
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def measure(world: World, bucket_bytes: int) -> dict[str, Any]:
    """The result, on all ranks together."""
    backend = str(world.backend)
    all_reduce: list[dict[str, Any]] = []
    for size in sorted({bucket_bytes, LARGE_BYTES[backend]}):  # the first predicts the time of the second
        if all_reduce and all_reduce[-1]["seconds"] * size / all_reduce[-1]["bytes"] > _BUDGET_S:
            break  # the estimate is equal on all ranks
        all_reduce.append(measure_all_reduce(world, size))
    rates = world.all_gather_object(measure_rates(world, MESSAGE_BYTES[backend]))
    return {
        "backend": backend,
        "ranks": world.size,
        "all_reduce": all_reduce,
        "links": [rate.model_dump() for rates_of_node in rates for rate in rates_of_node],
        "message_bytes": MESSAGE_BYTES[backend],
    }


def measure_all_reduce(world: World, size: int) -> dict[str, Any]:
    """Fastest all-reduce of `size` bytes of float32 after one warm-up. All ranks together."""
    tensor = torch.zeros(max(1, size // 4), device=world.device)

    def once() -> float:
        return last_to_arrive(world, [timed(world, lambda: dist.all_reduce(tensor))])[0]

    warm_up = once()  # with the set-up of connections
    repeats = max(1, min(_MOST_REPEATS, int(_BUDGET_S / max(warm_up, 1e-6))))
    seconds = min(once() for _ in range(repeats))
    bus_rate = tensor.nbytes / seconds * bus_factor("all_reduce", world.size)
    return {"bytes": tensor.nbytes, "seconds": seconds, "bus_bytes_per_s": bus_rate}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m disttrain.comm_bench.links", description=__doc__)
    parser.add_argument("out", type=Path, help="file of the result")
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="bucket size of DDP in MiB")
    began = time.monotonic()
    given, config = parse(parser)
    with open_world(config.with_values("job", collective_timeout_s=_COLLECTIVE_TIMEOUT_S)) as world:
        result = measure(world, round(given.bucket_mb * 2**20))
        if world.rank == 0:
            write_json(given.out, {**result, "seconds": time.monotonic() - began})


if __name__ == "__main__":
    main()
