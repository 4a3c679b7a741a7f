"""Options of `parallel.ddp` in DistributedDataParallel itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from disttrain.config.sections.parallel import DDPConfig, ParallelConfig
from disttrain.parallel.base import Mesh
from disttrain.parallel.ddp import build
from disttrain.runtime.process_group import World
from tests.support.ranks import RankFailed, Ranks

pytestmark = pytest.mark.multiprocess

OPTIONS = [
    {},
    {"bucket_mb": 3.0, "gradient_as_bucket_view": False},
    {"static_graph": True},
    {"find_unused_parameters": True},
    {"broadcast_buffers": False},
]
SIXTEEN_KIB = 2**-6
"""In MiB: the weights of `nn.Linear(64, 64, bias=False)`."""


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
        "broadcast_buffers": made.forward_sync_buffers,
    }


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_reach_pytorch(two_ranks: Ranks, options: dict[str, Any]) -> None:
    shaping_others = ("first_bucket_mb", "sync_batch_norm")  # not attributes of DDP
    defaults = {**DDPConfig().model_dump(exclude=set(shaping_others)), "bucket_mb": 25.0}
    assert two_ranks.call(settings, options) == [{**defaults, **options}] * 2


def three_steps(world: World, options: dict[str, Any]) -> list[float]:
    torch.manual_seed(0)
    made = parallel(world, Unused(), options)
    for step in range(3):
        made.zero_grad()
        made(torch.full((1, 4), float(step + world.rank))).sum().backward()
    assert made.module.weight.grad is not None
    return made.module.weight.grad[0].tolist()


def test_without_either_option_unused_parameters_are_an_error(two_ranks) -> None:
    with pytest.raises(RankFailed, match=r"did not receive grad|not used in producing loss"):
        two_ranks.call(three_steps, {})


@pytest.mark.parametrize("options", [{"static_graph": True}, {"find_unused_parameters": True}], ids=str)
def test_a_model_with_unused_parameters_trains_with_either_option(two_ranks, options) -> None:
    assert two_ranks.call(three_steps, options) == [[2.5] * 4] * 2


def buckets_of(world: World, options: dict[str, Any]) -> tuple[list[float], int, bool]:
    """Of a pass through eight layers of 16 KiB: MiB by bucket in the order of reduction, calls of all-reduce,
    and whether gradients share storage."""
    made = parallel(world, nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(8)]), options)
    sizes: list[float] = []

    def hook(state: object, bucket):  # type: ignore[no-untyped-def] # DDP compares the annotations themselves
        sizes.append(bucket.buffer().nbytes / 2**20)
        return allreduce_hook(dist.group.WORLD, bucket)

    made.register_comm_hook(None, hook)
    for _ in range(3):  # buckets are formed after the first pass; with a static graph after the second
        sizes.clear()
        made.zero_grad()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            made(torch.ones(1, 64)).sum().backward()
    calls = sum(event.count for event in profile.key_averages() if event.key == "gloo:all_reduce")
    shared = [
        p.grad.untyped_storage().nbytes() > p.grad.nbytes for p in made.parameters() if p.grad is not None
    ]
    return sizes, calls, any(shared)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [8]),
        ({"bucket_mb": 4 * SIXTEEN_KIB}, [4, 4]),
        ({"bucket_mb": SIXTEEN_KIB, "static_graph": True}, [1] * 8),
        ({"first_bucket_mb": SIXTEEN_KIB}, [1, 7]),
        ({"first_bucket_mb": 2 * SIXTEEN_KIB, "bucket_mb": 3 * SIXTEEN_KIB}, [2, 3, 3]),
    ],
    ids=str,
)
def test_bucket_sizes_set_the_number_of_collective_calls(
    two_ranks: Ranks, options: dict[str, Any], sizes: list[int]
) -> None:
    found, calls, _ = two_ranks.call(buckets_of, options)[0]
    assert found == [size * SIXTEEN_KIB for size in sizes]
    assert calls == len(sizes)


def test_a_bucket_view_saves_the_copy_of_the_gradients(two_ranks: Ranks) -> None:
    assert two_ranks.call(buckets_of, {"gradient_as_bucket_view": True})[0][2]
    assert not two_ranks.call(buckets_of, {"gradient_as_bucket_view": False})[0][2]


def running_mean(world: World, options: dict[str, Any]) -> list[float]:
    """Of a batch norm whose mean each rank set to its own number, after a forward pass of zeros."""
    made = parallel(world, nn.BatchNorm1d(1, momentum=0.5), options)
    assert made.module.running_mean is not None
    made.module.running_mean.fill_(world.rank + 1)
    made(torch.zeros(2, 1))
    return made.module.running_mean.tolist()


def test_buffers_follow_rank_0_unless_told_otherwise(two_ranks: Ranks) -> None:
    assert two_ranks.call(running_mean, {}) == [[0.5], [0.5]]
    assert two_ranks.call(running_mean, {"broadcast_buffers": False}) == [[0.5], [1.0]]


def gradients_by_micro_step(world: World, options: dict[str, Any]) -> list[tuple[int, float]]:
    """Calls of all-reduce, and the gradient, after each of three micro-steps."""
    strategy = build(ParallelConfig(ddp=DDPConfig(**options)))
    made = strategy.apply(nn.Linear(1, 1, bias=False), Mesh(world.rank, world.size), world)
    for _ in range(strategy.priming_passes):
        made(torch.ones(1, 1)).sum().backward()
    made.zero_grad()
    found = []
    for number in range(3):
        with (
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
            strategy.micro_step(made, last=number == 2),
        ):
            made(torch.full((1, 1), float(world.rank + 1))).sum().backward()
        calls = sum(event.count for event in profile.key_averages() if event.key == "gloo:all_reduce")
        gradient = next(made.parameters()).grad
        assert gradient is not None
        found.append((calls, gradient.item()))
    return found


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_only_the_last_micro_step_communicates(two_ranks: Ranks, options: dict[str, Any]) -> None:
    first, second = two_ranks.call(gradients_by_micro_step, options)
    assert [calls for calls, _ in first][:2] == [0, 0]
    assert [gradient for _, gradient in first] == [1, 2, 4.5]
    assert [gradient for _, gradient in second] == [2, 4, 4.5]
