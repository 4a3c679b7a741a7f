"""Synchronized batch norm on the CPU: the numbers of one big batch, on ranks with unequal shares of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from disttrain.config.sections.parallel import DDPConfig, ParallelConfig
from disttrain.parallel.base import Mesh
from disttrain.parallel.ddp import build
from disttrain.runtime.process_group import World
from tests.support.ranks import Ranks
from tests.support.tolerance import assert_close

pytestmark = pytest.mark.multiprocess

SHARES = [3, 5]
"""Samples by rank."""


class Convolutions(nn.Module):
    """Two batch norms, of which one is reached under two names."""

    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        self.last_norm = nn.BatchNorm2d(6, momentum=momentum)
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4, momentum=momentum),
            nn.Tanh(),
            nn.Conv2d(4, 6, 3),
            self.last_norm,
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def made(momentum: float | None) -> Convolutions:
    torch.manual_seed(0)
    return Convolutions(momentum).double()


def images() -> Tensor:
    """All samples."""
    generator = torch.Generator().manual_seed(1)
    return 10 + torch.randn(sum(SHARES), 2, 7, 7, generator=generator, dtype=torch.float64)


def two_steps(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Outputs, gradients and state after two forward and backward passes."""
    inputs = inputs.clone().requires_grad_()
    for _ in range(2):
        model.zero_grad()
        inputs.grad = None
        output = model(inputs)
        output.sin().sum().backward()
    assert inputs.grad is not None
    bare = model.module if hasattr(model, "module") else model
    gradients = {f"grad.{name}": p.grad for name, p in bare.named_parameters() if p.grad is not None}
    return {"output": output.detach(), "grad": inputs.grad, **gradients, **bare.state_dict()}


def synchronized(world: World, momentum: float | None) -> dict[str, Tensor]:
    strategy = build(ParallelConfig(ddp=DDPConfig(sync_batch_norm=True)))
    model = strategy.apply(made(momentum), Mesh(world.rank, world.size), world)
    return two_steps(model, images().split(SHARES)[world.rank])


@pytest.mark.parametrize("momentum", [0.1, None])
def test_forward_gradients_and_running_statistics_are_those_of_one_big_batch(
    two_ranks: Ranks, momentum: float | None
) -> None:
    whole = two_steps(made(momentum), images())
    parts = two_ranks.call(synchronized, momentum)
    # one magnitude for all: a bias before a batch norm has a gradient of rounding errors only
    largest = max(float(value.abs().max()) for value in whole.values())
    close = partial(assert_close, sums=8, magnitude=largest)  # four layers forward and backward
    for key in ("output", "grad"):
        close(torch.cat([part[key] for part in parts]), whole[key])
    for part in parts:
        assert part.keys() == whole.keys()
        for key, value in part.items():
            if key not in ("output", "grad"):  # DDP averages gradients, where the big batch sums them
                expected = whole[key] / 2 if key.startswith("grad.") else whole[key]
                close(value, expected)


def calls(world: World) -> dict[str, Any]:
    """Collective calls of the norms, by what runs."""
    strategy = build(ParallelConfig(ddp=DDPConfig(sync_batch_norm=True)))
    model = strategy.apply(made(0.1), Mesh(world.rank, world.size), world)
    count = 0

    @contextmanager
    def counted(dimension: object) -> Iterator[None]:
        nonlocal count
        count += 1
        yield

    def in_a_pass() -> int:
        nonlocal count
        count = 0
        model(images()).sum().backward()
        return count

    strategy.time_communication(model, counted)
    found = {"step": in_a_pass()}
    with strategy.no_comm(model):
        found["without communication"] = in_a_pass()
    model.eval()
    return {**found, "evaluation": in_a_pass()}


def test_its_communication_is_timed_and_left_out_where_asked(two_ranks: Ranks) -> None:
    """Each norm sums twice forward and twice backward; DDP broadcasts the buffers before a forward pass."""
    expected = {"step": 1 + 2 * 4, "without communication": 0, "evaluation": 1}
    assert two_ranks.call(calls) == [expected] * 2
