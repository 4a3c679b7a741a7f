"""Effects of the options of `fully_shard` in one process: collectives of a step, counted in a fake world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from disttrain.config.sections.parallel import FSDPConfig, ParallelConfig
from disttrain.errors import ConfigError
from disttrain.parallel import fsdp
from disttrain.parallel.base import Strategy, build_strategy
from disttrain.parallel.fsdp import offload_policy
from disttrain.runtime.fully_shard_hooks import param_groups, sharded_modules
from disttrain.runtime.process_group import World

BLOCKS = 4
NAMES = {
    "_allgather_base_": "gather",
    "_reduce_scatter_base_": "scatter",
    "allreduce_": "reduce",
    "broadcast_": "broadcast",
}


@pytest.fixture(autouse=True)
def _four_ranks() -> Iterator[None]:
    """Collectives of four ranks that exchange nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    """Blocks of one layer, and a layer of the root."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(BLOCKS))
        self.head = nn.Linear(8, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def sharded(strategy: str = "fsdp", **options: Any) -> tuple[Strategy, nn.Module]:
    world = World(rank=0, size=4, local_rank=0, local_size=2, device=torch.device("cpu"), backend="fake")
    config = ParallelConfig(fsdp=options)
    made = build_strategy(strategy, config)
    model = made.build(Net, world)
    return made, made.apply(model, made.mesh(world), world)


class Recorded(TorchDispatchMode):
    """Names of the collectives and of the passes of blocks, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace == "c10d":
            self.events.append(NAMES[name])
        return func(*args, **(kwargs or {}))


def events_of_a_step(strategy: str = "fsdp", micro_steps: int = 1, **options: Any) -> list[str]:
    made, model = sharded(strategy, **options)
    with Recorded() as recorded:
        for number, block in enumerate(model.blocks):
            block[1].register_forward_hook(lambda *_, at=number: recorded.events.append(f"forward {at}"))
            block[1].register_full_backward_hook(
                lambda *_, at=number: recorded.events.append(f"backward {at}")
            )
        for number in range(1, micro_steps + 1):
            with made.micro_step(model, last=number == micro_steps):
                model(torch.ones(2, 8)).sum().backward()
    return recorded.events


def counts(events: list[str]) -> tuple[int, int, int]:
    """Numbers of all-gathers, reduce-scatters and all-reduces."""
    found = Counter(events)
    return found["gather"], found["scatter"], found["reduce"]


GROUPS = BLOCKS + 1  # the root gathers its own parameters once


@pytest.mark.parametrize(
    ("strategy", "options", "expected"),
    [
        ("fsdp", {}, (3 * (2 * BLOCKS + 1), 3 * GROUPS, 0)),
        ("fsdp", {"reshard_after_forward": False}, (3 * GROUPS, 3 * GROUPS, 0)),
        ("fsdp", {"accumulation": "no_sync"}, (3 * (2 * BLOCKS + 1), GROUPS, 0)),
        ("hsdp", {}, (3 * (2 * BLOCKS + 1), 3 * GROUPS, GROUPS)),
        ("hsdp", {"accumulation": "no_sync"}, (3 * (2 * BLOCKS + 1), GROUPS, GROUPS)),
    ],
)
def test_collectives_of_three_micro_steps(strategy, options, expected) -> None:
    assert counts(events_of_a_step(strategy, micro_steps=3, **options)) == expected


def gathered_before(events: list[str], passes: str) -> list[int]:
    """All-gathers of the same direction before the pass of each block, in order of the passes."""
    begin = 0 if passes == "forward" else events.index(f"forward {BLOCKS - 1}")
    ends = [at for at, event in enumerate(events) if event.startswith(passes)]
    return [events[begin:end].count("gather") for end in ends]


def test_prefetched_blocks_are_gathered_ahead() -> None:
    assert gathered_before(events_of_a_step(), "forward") == [2, 3, 4, 5]
    assert gathered_before(events_of_a_step(forward_prefetch=2), "forward") == [4, 5, 5, 5]
    assert gathered_before(events_of_a_step(), "backward") == [2, 3, 4, 4]
    assert gathered_before(events_of_a_step(backward_prefetch=2), "backward") == [3, 4, 4, 4]


def test_the_shards_of_all_blocks_are_offloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsdp, "offload_policy", lambda *_: CPUOffloadPolicy(pin_memory=False))
    _, model = sharded(cpu_offload=True)
    offloaded = [
        p.offload_to_cpu for m in sharded_modules(model) for g in param_groups(m) for p in g.fsdp_params
    ]
    assert offloaded == [True] * 2 * GROUPS
    assert {parameter.device for parameter in model.parameters()} == {torch.device("cpu")}


def test_a_gpu_offloads_to_pinned_memory_and_a_cpu_refuses() -> None:
    options = FSDPConfig(cpu_offload=True)
    assert offload_policy(options, torch.device("cuda")) == CPUOffloadPolicy(pin_memory=True)
    assert type(offload_policy(FSDPConfig(), torch.device("cuda"))) is OffloadPolicy
    with pytest.raises(ConfigError, match="needs a GPU, and this rank computes on cpu"):
        sharded(cpu_offload=True)


def test_the_norm_of_offloaded_gradients_is_reduced_on_the_device_of_the_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL reduces no tensors in host memory. `meta` stands for the GPU."""
    made, model = sharded()
    model(torch.ones(2, 8)).sum().backward()
    reduced = []
    monkeypatch.setattr(fsdp, "compute_device", lambda model: torch.device("meta"))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: reduced.append(tensor.device.type))
    assert made.grad_norm(model, made.parameters(model)).device.type == "meta"
    assert reduced == ["meta"]


def test_a_validation_leaves_every_parameter_sharded() -> None:
    made, model = sharded()
    with made.evaluation(model):
        model(torch.ones(2, 8))
        assert not isinstance(model.head.weight, DTensor), "the root stays gathered after a forward pass"
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
