"""Exposed communication of emulated steps by three methods side by side, for `truth.py`.

| method | exposed communication |
|---|---|
| `ddp_backward_tail` | from the end of this rank's own backward pass to the end of `backward()` |
| `ddp_logger` | span of communication minus its overlap with compute, by DDP's logger |
| `no_communication` | difference of a step and the same step of a copy whose hook sends nothing |

The methods take turns, and the ranks begin each step together, so a slow machine slows all methods.
"""
# No `from __future__ import annotations`: DDP refuses a hook whose annotations are text.

import statistics
import time

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from disttrain.data import synthetic
from disttrain.models import emulated
from disttrain.models.emulated import Emulated
from disttrain.parallel.ddp import after_own_backward
from disttrain.runtime.process_group import World

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
