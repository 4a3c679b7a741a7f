"""A training loop over an emulated model sharded by `fully_shard`, whose step time is known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.tensor import DTensor

from disttrain import LoopTelemetry
from disttrain.data import synthetic
from disttrain.models import emulated
from disttrain.models.emulated import Emulated
from disttrain.runtime.fully_shard_hooks import observe
from disttrain.runtime.process_group import World
from tests.support.injected_delays import WARM_UP, real_time_priority

SOURCE = synthetic.build(shape=(8,), classes=2, samples=8)
FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.01, 0.02, 0.01
NUMBERS = (4096, 1001, 0, 2, 2048)
"""Parameters by layer: one layer has none, and FSDP2 pads a count that the ranks do not divide."""
COMPUTE_S = len(NUMBERS) * (FORWARD_S + BACKWARD_S)
STEPS = WARM_UP + 7


def build(dtype_bytes: int = 4, late_s: dict[int, float] | None = None, **options: Any) -> Emulated:
    """Build the model; `late_s` holds additional seconds of the backward pass by layer."""
    layers = [
        {
            "name": str(place),
            "bytes": count * dtype_bytes,
            "forward_s": FORWARD_S,
            "backward_s": BACKWARD_S + (late_s or {}).get(place, 0.0),
        }
        for place, count in enumerate(NUMBERS)
    ]
    table = {"layers": layers, "dtype_bytes": dtype_bytes}
    return emulated.build(SOURCE, table=table, **{"optimizer_s": OPTIMIZER_S, **options})


class Gather(DefaultAllGather):
    """An all-gather that records each call with its elements."""

    def __init__(self, calls: list[tuple[str, int]]) -> None:
        super().__init__()
        self.calls = calls

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        self.calls.append(("gather", output_tensor.numel()))
        return super().__call__(output_tensor, input_tensor, group, async_op)


class Scatter(DefaultReduceScatter):
    """A reduce-scatter like `Gather`."""

    def __init__(self, calls: list[tuple[str, int]]) -> None:
        super().__init__()
        self.calls = calls

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        self.calls.append(("scatter", input_tensor.numel()))
        return super().__call__(output_tensor, input_tensor, group, op, async_op)


def shard(world: World, model: Emulated, build: str, longer_s: float = 0.0) -> list[tuple[str, int]]:
    """Shard the model with collectives that take `longer_s` longer; the list grows with each call."""
    calls: list[tuple[str, int]] = []

    @contextmanager
    def slow(dimension: object) -> Iterator[None]:
        time.sleep(longer_s)
        yield

    BUILD[build](world, model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(Gather(calls))
            module.set_custom_reduce_scatter(Scatter(calls))
            observe(module, slow)
    return calls


def train(
    world: World,
    folder: Path,
    *,
    build_as: str = "every_layer",
    longer_s: float = 0.0,
    late_s: dict[int, dict[int, float]] | None = None,
    unshard: bool = False,
    steps: int = STEPS,
    **options: Any,
) -> list[tuple[str, int]]:
    """The collectives of the last step. `late_s` is by rank and layer."""
    model = build(late_s=(late_s or {}).get(world.rank), **options)
    calls = shard(world, model, build_as, longer_s)
    optimizer = model.make_optimizer()
    telemetry = {"warmup_steps": WARM_UP, "profiled_steps": 0, "sinks": []}
    with (
        real_time_priority(),
        LoopTelemetry(folder, model, optimizer, steps=steps, samples_per_step=1, telemetry=telemetry) as look,
    ):
        for inputs in look.steps([torch.zeros(1, 8)] * steps):
            calls.clear()
            if unshard:
                model.layers[0].unshard(async_op=True)
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return calls


def learn(
    world: World, build_as: str | None, dtype_bytes: int
) -> tuple[list[list[float]], list[list[float]]]:
    """By parameter, the gradients averaged over the ranks and the weights after two steps, of a model that is
    sharded, or whole where `build_as` is None."""
    model = build(dtype_bytes)
    if build_as:
        shard(world, model, build_as)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    gradients = []
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.zeros(1, 8)).sum() * (world.rank + 1)).backward()
        if not build_as:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world.size
        gradients = [_whole(parameter.grad) for parameter in model.parameters()]
        optimizer.step()
    return gradients, [_whole(parameter.detach()) for parameter in model.parameters()]


def _whole(tensor: torch.Tensor) -> list[float]:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).tolist()


def _every_layer(world: World, model: Emulated, **how: Any) -> None:
    for layer in model.layers:
        fully_shard(layer, **how)
    fully_shard(model, **how)


def _root(world: World, model: Emulated, **how: Any) -> None:
    fully_shard(model, **how)


def _replicated(world: World, model: Emulated) -> None:
    mesh = init_device_mesh("cpu", (world.size, 1), mesh_dim_names=("replicate", "shard"))
    _every_layer(world, model, mesh=mesh)


BUILD = {
    "every_layer": _every_layer,
    "every_layer_kept": partial(_every_layer, reshard_after_forward=False),
    "root": _root,
    "root_resharded": partial(_root, reshard_after_forward=True),
    "replicated": _replicated,
}
"""Ways to shard a model."""
