"""Waits for slow collectives of `fully_shard` on a real GPU: what compute hides of them is not exposed.

The process group does nothing, and each collective sleeps on its own stream, so one GPU is enough.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.testing._internal.distributed.fake_pg import FakeStore

from disttrain.models.emulated_device import Device, make_device
from disttrain.parallel.fully_shard_waits import STREAM_WAITS, comm_method, time_waits
from disttrain.runtime.process_group import World
from disttrain.telemetry.step_clock import COMPUTE, PHASE_OF_DIMENSION, CudaClock, control_sync

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

DEVICE = torch.device("cuda", 0)
IN_PAIR = World(rank=0, size=2, local_rank=0, local_size=2, device=DEVICE, backend="fake")
PASS_S, GATHER_S, SCATTER_S = 0.02, 0.03, 0.05
BLOCKS, STEPS = 3, 6


@pytest.fixture(autouse=True)
def fake_group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


class Gather(DefaultAllGather):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __call__(self, *args: Any, **how: Any) -> Any:
        self.device.advance(GATHER_S)
        return super().__call__(*args, **how)


class Scatter(DefaultReduceScatter):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __call__(self, *args: Any, **how: Any) -> Any:
        self.device.advance(SCATTER_S)
        return super().__call__(*args, **how)


class Block(nn.Module):
    """A layer that takes `PASS_S` in each pass."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.device = device

    def forward(self, inputs: Tensor) -> Tensor:
        self.device.advance(PASS_S)
        outputs: Tensor = self.linear(inputs)
        outputs.register_hook(lambda grad: self.device.advance(PASS_S))
        return outputs


def test_the_compute_stream_waits_for_what_it_does_not_hide() -> None:
    device = make_device(DEVICE)
    model = nn.Sequential(*(Block(device) for _ in range(BLOCKS))).to(DEVICE)
    mesh = init_device_mesh("cuda", (2,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model:
        assert isinstance(module, FSDPModule)
        module.set_custom_all_gather(Gather(device))
        module.set_custom_reduce_scatter(Scatter(device))
    assert comm_method(model, IN_PAIR) == (STREAM_WAITS, None)
    clock = CudaClock()
    time_waits(model, lambda dimension: control_sync(clock, PHASE_OF_DIMENSION[dimension]))
    inputs = torch.zeros(4, 64, device=DEVICE, requires_grad=True)
    torch.cuda.synchronize()
    clock.start()
    for _ in range(STEPS):
        clock.switch(COMPUTE)
        model(inputs).sum().backward()
        clock.end_step()
    steps = clock.finished(await_steps=STEPS)[1:]
    compute_s = statistics.median(step.phases[COMPUTE] for step in steps)
    exposed_s = statistics.median(step.exposed_s for step in steps)
    assert compute_s == pytest.approx(2 * BLOCKS * PASS_S, rel=0.1)
    longest = 2 * BLOCKS * GATHER_S + BLOCKS * SCATTER_S
    assert GATHER_S + SCATTER_S < exposed_s < longest, "the first gather and the last scatter are exposed"
    step_s = statistics.median(sum(step.phases) + step.exposed_s for step in steps)
    assert step_s == pytest.approx(compute_s + exposed_s, rel=0.05), "no wait is outside of both"
