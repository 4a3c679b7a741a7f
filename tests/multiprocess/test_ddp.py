"""Options of `parallel.ddp` in DistributedDataParallel itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from disttrain.config.sections.parallel import DDPConfig, ParallelConfig
from disttrain.parallel.ddp import build
from disttrain.parallel.mesh import Mesh
from disttrain.runtime.process_group import World
from tests.support.ranks import Ranks

pytestmark = pytest.mark.multiprocess

OPTIONS = [
    {},
    {"bucket_mb": 3.0, "gradient_as_bucket_view": False},
    {"static_graph": True},
    {"find_unused_parameters": True},
]


class Unused(nn.Linear):
    """A layer beside parameters that no step uses."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs)


def parallel(world: World, model: nn.Module, options: dict[str, Any]) -> DistributedDataParallel:
    made = build(ParallelConfig(ddp=DDPConfig(**options))).apply(model, Mesh(world.rank, world.size), world)
    assert isinstance(made, DistributedDataParallel)
    return made


def settings(world: World, options: dict[str, Any]) -> dict[str, Any]:
    made = parallel(world, nn.Linear(4, 2), options)
    return {
        "bucket_mb": made.bucket_bytes_cap / 2**20,
        "gradient_as_bucket_view": made.gradient_as_bucket_view,
        "static_graph": made.static_graph,
        "find_unused_parameters": made.find_unused_parameters,
    }


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_reach_pytorch(two_ranks: Ranks, options: dict[str, Any]) -> None:
    defaults = {**DDPConfig().model_dump(), "bucket_mb": 25.0}
    assert two_ranks.call(settings, options) == [{**defaults, **options}] * 2


def three_steps(world: World, options: dict[str, Any]) -> list[float]:
    torch.manual_seed(0)
    made = parallel(world, Unused(), options)
    for step in range(3):
        made.zero_grad()
        made(torch.full((1, 4), float(step + world.rank))).sum().backward()
    assert made.module.weight.grad is not None
    return made.module.weight.grad[0].tolist()


@pytest.mark.parametrize("options", [{"static_graph": True}, {"find_unused_parameters": True}], ids=str)
def test_a_model_with_unused_parameters_trains_with_either_option(two_ranks, options) -> None:
    assert two_ranks.call(three_steps, options) == [[2.5] * 4] * 2
