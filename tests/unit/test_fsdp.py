"""Effects of the options of `fully_shard` in one process: collectives of a step, counted in a fake world."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from disttrain.config.sections.parallel import FSDPConfig, ParallelConfig
from disttrain.parallel import fsdp
from disttrain.parallel.base import build_strategy
from disttrain.parallel.fsdp import offload_policy, param_groups, sharded_modules
from disttrain.runtime.process_group import World

BLOCKS = 4
GROUPS = BLOCKS + 1  # the root gathers its own parameters once
NAMES = {"_allgather_base_": "gather", "_reduce_scatter_base_": "scatter", "allreduce_": "reduce"}


@pytest.fixture(autouse=True)
def _four_ranks():
    """Collectives of four ranks that exchange nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    """Blocks of one layer, and a layer and a buffer of the root."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(BLOCKS)))
        self.head = nn.Linear(8, 2)
        self.register_buffer("running", torch.zeros(3))

    def forward(self, inputs):
        return self.head(self.blocks(inputs))


def sharded(strategy="fsdp", **options):
    world = World(rank=0, size=4, local_rank=0, local_size=2, device=torch.device("cpu"), backend="fake")
    made = build_strategy(strategy, ParallelConfig(fsdp=options))
    return made, made.apply(made.build(Net, world), made.mesh(world), world)


class Recorded(TorchDispatchMode):
    """Names of the collectives and of the passes of blocks, in order."""

    def __init__(self):
        super().__init__()
        self.events = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        namespace, _, name = func._schema.name.partition("::")
        if namespace == "c10d":
            self.events.append(NAMES.get(name, name))
        return func(*args, **(kwargs or {}))


def events_of_a_step(strategy="fsdp", micro_steps=1, **options):
    made, model = sharded(strategy, **options)
    with Recorded() as recorded:
        for block in model.blocks:
            block[1].register_forward_hook(lambda *_: recorded.events.append("forward"))
            block[1].register_full_backward_hook(lambda *_: recorded.events.append("backward"))
        for number in range(1, micro_steps + 1):
            with made.micro_step(model, last=number == micro_steps):
                model(torch.ones(2, 8)).sum().backward()
    return recorded.events


@pytest.mark.parametrize(
    ("strategy", "options", "gathers", "scatters", "reduces"),
    [
        ("fsdp", {}, 3 * (2 * BLOCKS + 1), 3 * GROUPS, 0),
        ("fsdp", {"reshard_after_forward": False}, 3 * GROUPS, 3 * GROUPS, 0),
        ("fsdp", {"accumulation": "no_sync"}, 3 * (2 * BLOCKS + 1), GROUPS, 0),
        ("hsdp", {}, 3 * (2 * BLOCKS + 1), 3 * GROUPS, GROUPS),
        ("hsdp", {"accumulation": "no_sync"}, 3 * (2 * BLOCKS + 1), GROUPS, GROUPS),
    ],
)
def test_collectives_of_three_micro_steps(strategy, options, gathers, scatters, reduces):
    counts = Counter(events_of_a_step(strategy, micro_steps=3, **options))
    assert [counts[name] for name in ("gather", "scatter", "reduce")] == [gathers, scatters, reduces]
    assert counts["broadcast_"] == 1, "of buffers, once a step"


@pytest.mark.parametrize(
    ("direction", "options", "gathered"),
    [
        ("forward", {}, [2, 3, 4, 5]),
        ("forward", {"forward_prefetch": 2}, [4, 5, 5, 5]),
        ("backward", {}, [2, 3, 4, 4]),
        ("backward", {"backward_prefetch": 2}, [3, 4, 4, 4]),
    ],
)
def test_prefetched_blocks_are_gathered_ahead(direction, options, gathered):
    """All-gathers of the same direction before the pass of each block, in order of the passes."""
    events = events_of_a_step(**options)
    begin = 0 if direction == "forward" else len(events) - events[::-1].index("forward")
    ends = [at for at, event in enumerate(events) if event == direction]
    assert [events[begin:end].count("gather") for end in ends] == gathered


def test_a_gpu_offloads_to_pinned_memory():
    assert offload_policy(FSDPConfig(cpu_offload=True)) == CPUOffloadPolicy(pin_memory=True)
    assert type(offload_policy(FSDPConfig())) is OffloadPolicy


def test_the_shards_of_all_blocks_are_offloaded(monkeypatch):
    monkeypatch.setattr(fsdp, "offload_policy", lambda options: CPUOffloadPolicy(pin_memory=False))
    _, model = sharded(cpu_offload=True)
    groups = [group for module in sharded_modules(model) for group in param_groups(module)]
    assert [shard.offload_to_cpu for group in groups for shard in group.fsdp_params] == [True] * 2 * GROUPS


def test_the_norm_of_offloaded_gradients_is_reduced_on_the_device_of_the_passes(monkeypatch):
    """NCCL reduces no tensors in host memory. `meta` stands for the GPU."""
    made, model = sharded()
    model(torch.ones(2, 8)).sum().backward()
    reduced = []
    monkeypatch.setattr(fsdp, "compute_device", lambda model: torch.device("meta"))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: reduced.append(tensor.device.type))
    assert made.grad_norm(model, made.parameters(model)).device.type == "meta"
    assert reduced == ["meta"]


@pytest.mark.parametrize("accumulation", ["reduce_scatter", "no_sync"])
def test_dropped_gradients_leave_no_trace_in_the_next_step(accumulation):
    made, model = sharded(accumulation=accumulation)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for drops in (True, False):
        if drops:
            with made.micro_step(model, last=False):
                model(torch.full((2, 8), 3.0)).sum().backward()
            made.drop_gradients(model, optimizer)
        with Recorded() as recorded, made.micro_step(model, last=True):
            model(torch.ones(2, 8)).sum().backward()
        assert "broadcast_" in recorded.events, "the buffers of the dropped step may differ"
        gradients.append([p.grad.to_local().clone() for p in model.parameters()])
        optimizer.zero_grad()
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_a_validation_leaves_every_parameter_sharded():
    made, model = sharded()
    with made.evaluation(model):
        model(torch.ones(2, 8))
        assert not isinstance(model.head.weight, DTensor), "the root stays gathered after a forward pass"
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
