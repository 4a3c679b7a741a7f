"""Bytes of weights, gradients and optimizer state by strategy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from disttrain.config.sections.optim import OptimConfig
from disttrain.models.state_memory import ModelSize, moments, replicated_memory, sharded_memory
from disttrain.optim.optimizer import build_optimizer


@pytest.mark.parametrize(
    "options",
    [{"name": "adamw"}, {"name": "sgd", "momentum": 0.9}, {"name": "sgd", "momentum": 0.0}],
    ids=str,
)
def test_the_state_of_a_replicated_model_is_what_torch_holds_after_a_step(options):
    model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 100))
    model[0].requires_grad_(False)
    optim = OptimConfig(**options)
    optimizer = build_optimizer(model.parameters(), optim)
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    held = [t for p in parameters for t in optimizer.state.get(p, {}).values() if torch.is_tensor(t)]
    size = ModelSize(
        parameters=sum(p.numel() for p in parameters),
        trained=sum(p.numel() for p in parameters if p.requires_grad),
    )
    found = replicated_memory(size, moments(optim.name, optim.momentum))
    assert found.parameters == sum(p.nbytes for p in parameters)
    assert found.gradients == sum(p.grad.nbytes for p in parameters if p.grad is not None)
    assert found.optimizer == sum(t.nbytes for t in held if t.dim())  # the counters of steps are scalars
    assert found.total == found.parameters + found.gradients + found.optimizer


def test_adamw_in_float32_takes_sixteen_bytes_per_parameter():
    size = ModelSize(parameters=1_300_000_000, trained=1_300_000_000)
    assert replicated_memory(size, 2).total == 16 * size.parameters
    assert replicated_memory(size, 2, bucket_copy=True).total == 20 * size.parameters


def test_sharding_divides_the_state_and_gathers_two_blocks():
    size = ModelSize(parameters=1000, trained=1000, largest_block=200, outside_blocks=100)
    found = sharded_memory(size, 2, ranks=8)
    assert (found.parameters, found.gradients, found.optimizer) == (500, 500, 1000)
    assert found.gathered == 4 * (100 + 2 * 200) + 4 * (100 + 200)
    assert sharded_memory(size, 2, 8, gathered_bytes=2).gathered == found.gathered // 2
    assert sharded_memory(size, 2, 8, backward_prefetch=2).gathered == found.gathered + 4 * 200
    assert sharded_memory(size, 2, 8, forward_prefetch=2).gathered == found.gathered
    assert sharded_memory(size, 2, 8, forward_prefetch=4).gathered == 4 * 1000
    assert sharded_memory(size, 2, 8, reshard=False).gathered == 4 * 1000 + 4 * 300
    alone = sharded_memory(size, 2, ranks=1)
    assert alone.gathered == found.gathered  # a copy of the rank's own parameters
    assert alone.total == replicated_memory(size, 2).total + found.gathered


def test_a_model_without_blocks_is_gathered_as_a_whole():
    size = ModelSize(parameters=1000, trained=900)
    assert sharded_memory(size, 0, ranks=3).gathered == 4 * (1000 + 900)
    assert sharded_memory(size, 0, ranks=3).parameters == 4 * 334


def test_offloaded_shards_leave_what_one_block_needs():
    size = ModelSize(parameters=1000, trained=1000, largest_block=200, outside_blocks=100)
    on_device, offloaded = sharded_memory(size, 2, ranks=8), sharded_memory(size, 2, ranks=8, offload=True)
    assert (offloaded.parameters, offloaded.gradients, offloaded.optimizer) == (0, 0, 0)
    assert offloaded.gathered == on_device.gathered + 2 * 4 * 25  # shards of a block and of its gradient
    assert sharded_memory(size, 2, ranks=1, offload=True).gathered == 4 * (100 + 400) + 4 * 300 + 2 * 4 * 200


def test_offloaded_shards_of_a_large_embedding_exceed_those_of_a_block():
    size = ModelSize(parameters=1000, trained=1000, largest_block=200, outside_blocks=400)
    on_device, offloaded = sharded_memory(size, 2, ranks=8), sharded_memory(size, 2, ranks=8, offload=True)
    assert offloaded.gathered == on_device.gathered + 2 * 4 * 50


def test_gradients_without_synchronisation_are_whole():
    size = ModelSize(parameters=1000, trained=900, largest_block=200, outside_blocks=100)
    assert sharded_memory(size, 2, ranks=8, whole_gradients=True).gradients == 4 * 900
