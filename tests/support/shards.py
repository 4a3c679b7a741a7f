"""A training loop over a model sharded by `fully_shard`, block by block. Blocks sleep instead of computing:
two processors are enough for all ranks."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from disttrain import LoopTelemetry
from disttrain.runtime.process_group import World
from disttrain.telemetry.profiled.profiled_steps import LARGEST_SHARE
from tests.support.injected_delays import WARM_UP, real_time_priority

BLOCKS, WIDTH, BATCH = 3, 16, 4
STEPS = WARM_UP + LARGEST_SHARE
PASS_S = 0.005


class Block(nn.Module):
    """A layer whose passes take `PASS_S` seconds plus those of `late_s`."""

    def __init__(self, late_s: dict[str, float]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.late_s = late_s

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(PASS_S + self.late_s.get("forward", 0.0))
        outputs = torch.tanh(self.linear(inputs))
        if outputs.requires_grad:
            outputs.register_hook(self._backward)
        return outputs

    def _backward(self, grad: torch.Tensor) -> None:
        time.sleep(PASS_S + self.late_s.get("backward", 0.0))


def train(
    world: World,
    folder: Path | None,
    *,
    late_s: dict[int, dict[str, float]] | None = None,
    build: str = "every_block",
    accumulation: int = 1,
    unshard: bool = False,
) -> list[float]:
    """Train and return the losses; with a `folder`, measure the steps.

    The second block of rank r is `late_s[r]["forward"]` and `late_s[r]["backward"]` seconds late.
    """
    torch.manual_seed(0)
    late = (late_s or {}).get(world.rank, {})
    model = nn.Sequential(*(Block(late if place == 1 else {}) for place in range(BLOCKS)))
    BUILD[build](world, model)
    before = comm_objects(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    batches = list(torch.randn(STEPS * accumulation, world.size, BATCH, WIDTH)[:, world.rank])
    look = (
        LoopTelemetry(
            folder,
            model,
            optimizer,
            steps=STEPS,
            samples_per_step=BATCH * accumulation,
            accumulation=accumulation,
            telemetry={"warmup_steps": WARM_UP, "profiled_steps": 1, "sinks": []},
        )
        if folder
        else None
    )
    losses = []
    with real_time_priority(), look or nullcontext():
        for number, inputs in enumerate(look.steps(batches) if look else batches, 1):
            last = number % accumulation == 0
            if accumulation > 1:
                model.set_requires_gradient_sync(last)
            if unshard:
                model[0].unshard(async_op=True)
            loss = model(inputs).square().mean()
            loss.backward()
            losses.append(loss.item())
            if last:
                optimizer.step()
                optimizer.zero_grad()
    assert comm_objects(model) == before, "telemetry restored the collectives of the model"
    return losses


def comm_objects(model: nn.Module) -> list[Any]:
    groups = [
        group
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in module._get_fsdp_state()._fsdp_param_groups
    ]
    return [(group._all_gather_comm, group._reduce_scatter_comm) for group in groups]


def _every_block(world: World, model: nn.Sequential, **how: Any) -> None:
    for block in model:
        fully_shard(block, **how)
    fully_shard(model, **how)


def _but_the_last(world: World, model: nn.Sequential) -> None:
    for block in model[:-1]:
        fully_shard(block)


def _replicated(world: World, model: nn.Sequential) -> None:
    mesh = init_device_mesh("cpu", (world.size, 1), mesh_dim_names=("replicate", "shard"))
    _every_block(world, model, mesh=mesh)


def _with_hook(world: World, model: nn.Sequential) -> None:
    _every_block(world, model)
    model[0].set_all_reduce_hook(lambda output: None)


BUILD = {
    "every_block": _every_block,
    "kept": partial(_every_block, reshard_after_forward=False),
    "but_the_last": _but_the_last,
    "replicated": _replicated,
    "with_hook": _with_hook,
}
"""Ways to shard a model."""
