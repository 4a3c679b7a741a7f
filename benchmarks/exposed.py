"""Exposed communication of emulated steps by three methods side by side.

    torchrun --nproc-per-node 2 -m benchmarks.exposed [--save LABEL]

| method | exposed communication |
|---|---|
| `ddp_backward_tail` | from the end of this rank's own backward pass to the end of `backward()` |
| `ddp_logger` | span of communication minus its overlap with compute, by DDP's logger |
| `no_communication` | difference of a step and the same step of a copy whose hook sends nothing |

The methods take turns, and the ranks begin each step together, so a slow machine slows all methods.
"""
# No `from __future__ import annotations`: DDP refuses a hook whose annotations are text.

import argparse
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from benchmarks import result_record
from disttrain.config.sections.resources import ResourcesConfig
from disttrain.data import synthetic
from disttrain.emulation.model import Emulated
from disttrain.models import emulated
from disttrain.parallel.backward_end import after_own_backward
from disttrain.runtime.process_group import World, open_world
from disttrain.runtime.rank_info import rank_info

WARM_UP = 3


class Switch:
    """Whether the communication hook of the copy sends."""

    sends = True


def hook(switch: Switch, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    if not switch.sends:
        nothing: Future[torch.Tensor] = Future()
        nothing.set_result(bucket.buffer())
        return nothing
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def median_exposed_s(world: World, model: Emulated, bucket_mb: float, rounds: int) -> dict[str, float]:
    """Median seconds of exposed communication on this rank, by method; a collective call."""
    return {name: statistics.median(s) for name, s in measure(world, model, bucket_mb, rounds).items()}


def measure(world: World, model: Emulated, bucket_mb: float, rounds: int) -> dict[str, list[float]]:
    """Seconds of exposed communication on this rank, by method and round; a collective call."""
    measured = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    measured._set_ddp_runtime_logging_sample_rate(1)
    switch = Switch()
    copy = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    copy.register_comm_hook(switch, hook)
    exposed, logged, sending, no_comm = [], [], [], []
    for _ in range(WARM_UP + rounds):
        exposed.append(_pass(world, measured)[1])
        if len(exposed) > WARM_UP + 1:
            logged.append(_logged(measured))
        switch.sends = True
        sending.append(_pass(world, copy)[0])
        switch.sends = False
        no_comm.append(_pass(world, copy)[0])
    without = [with_ - less for with_, less in zip(sending, no_comm, strict=True)]
    return {
        "ddp_backward_tail": exposed[WARM_UP:-1],
        "ddp_logger": logged,
        "no_communication": without[WARM_UP:],
    }


def _pass(world: World, model: DistributedDataParallel) -> tuple[float, float]:
    """Seconds of a forward and a backward pass, and of its exposed communication."""
    own_end = 0.0

    def own_backward_done() -> None:
        nonlocal own_end
        own_end = time.perf_counter()

    model.zero_grad(set_to_none=True)
    world.all_gather_object(None)
    began = time.perf_counter()
    loss = model(torch.zeros(1, 8)).sum()
    after_own_backward([loss], own_backward_done)
    loss.backward()
    ended = time.perf_counter()
    return ended - began, ended - own_end


def _logged(model: DistributedDataParallel) -> float:
    """Exposed seconds of the pass before the last one; DDP's logger reads a pass when the next one begins."""
    found = model._get_ddp_logging_data()
    return float(found["backward_comm_time"] - found["backward_compute_comm_overlap_time"]) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--layer-mb", type=float, default=4.0)
    parser.add_argument("--bucket-mb", type=float, default=8.0)
    parser.add_argument("--forward-s", type=float, default=0.04)
    parser.add_argument("--backward-s", type=float, default=0.08)
    parser.add_argument("--late-s", type=float, default=0.0, help="rank 1 computes longer by this")
    parser.add_argument("--rounds", type=int, default=20)
    result_record.add_option(parser)
    given = parser.parse_args()
    here = rank_info()
    shape = ResourcesConfig(nodes=here.nodes, gpus_per_node=here.local_size, device="cpu")
    with open_world(shape) as world:
        model = build(given.layers, given.layer_mb, given.forward_s, given.backward_s, given.late_s)
        raw = {"ranks": world.all_gather_object(measure(world, model, given.bucket_mb, given.rounds))}
        if world.rank == 0:
            result = figures(raw)
            for rank, found in result.items():
                print(f"{rank}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))
            result_record.save("exposed", given.save, result, raw)


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Median exposed communication of each rank in milliseconds, by method."""
    return {
        f"rank-{rank}": {f"{name}_ms": 1e3 * statistics.median(seconds) for name, seconds in found.items()}
        for rank, found in enumerate(raw["ranks"])
    }


def build(layers: int, layer_mb: float, forward_s: float, backward_s: float, late_s: float) -> Emulated:
    return emulated.build(
        synthetic.build(shape=(8,), classes=2, samples=8),
        layers=layers,
        layer_mb=layer_mb,
        forward_s=forward_s,
        backward_s=backward_s,
        slow_ranks=(1,) if late_s else (),
        slow_s=late_s,
    )


if __name__ == "__main__":
    main()
