"""Bytes of weights, gradients and optimizer state by strategy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from disttrain.config.config_tree import Config
from disttrain.engine.memory_estimate import ModelSize, state_memory
from disttrain.optim.optimizer import build_optimizer

BLOCKS = ModelSize(parameters=1000, trained=1000, largest_block=200, outside_blocks=100)


def state(
    strategy: str, size: ModelSize = BLOCKS, ranks: int = 8, accumulates: bool = False, **sections: Any
) -> tuple[int, int, int, int]:
    base = {"train": {"steps": 1, "local_batch_size": 1}, "resources": {"nodes": ranks}}
    return state_memory(Config.model_validate(base | sections), strategy, size, accumulates)


def fsdp(**options: Any) -> dict[str, Any]:
    return {"parallel": {"fsdp": options}}


@pytest.mark.parametrize(
    "options",
    [{"name": "adamw"}, {"name": "sgd", "momentum": 0.9}, {"name": "sgd", "momentum": 0.0}],
    ids=str,
)
def test_the_state_of_a_replicated_model_is_what_torch_holds_after_a_step(options: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 100))
    model[0].requires_grad_(False)
    config = Config.model_validate({"train": {"steps": 1, "local_batch_size": 1}, "optim": options})
    optimizer = build_optimizer(model.parameters(), config.optim)
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    moments = [t for p in parameters for t in optimizer.state.get(p, {}).values() if torch.is_tensor(t)]
    assert state_memory(config, "single", ModelSize.of(model), False) == (
        sum(p.nbytes for p in parameters),
        sum(p.grad.nbytes for p in parameters if p.grad is not None),
        sum(t.nbytes for t in moments if t.dim()),  # the counters of steps are scalars
        0,
    )


def test_adamw_in_float32_takes_sixteen_bytes_per_parameter_and_buckets_may_be_copies() -> None:
    assert sum(state("ddp")) == 16 * 1000
    assert sum(state("ddp", accumulates=True)) == 20 * 1000
    assert sum(state("ddp", parallel={"ddp": {"gradient_as_bucket_view": False}})) == 20 * 1000


def test_sharding_divides_the_state_and_gathers_two_blocks() -> None:
    found = state("fsdp")
    gathered = 4 * (100 + 2 * 200) + 4 * (100 + 200)
    assert found == (500, 500, 1000, gathered)
    assert state("fsdp", precision={"dtype": "bf16"})[3] == gathered // 2
    assert state("fsdp", **fsdp(backward_prefetch=2))[3] == gathered + 4 * 200
    assert state("fsdp", **fsdp(forward_prefetch=2))[3] == gathered
    assert state("fsdp", **fsdp(forward_prefetch=4))[3] == 4 * 1000
    assert state("fsdp", **fsdp(reshard_after_forward=False))[3] == 4 * 1000 + 4 * 300
    assert sum(state("fsdp", ranks=1)) == 16 * 1000 + gathered  # a copy of the rank's own parameters
    assert state("hsdp", parallel={"hsdp": {"shard_size": 2}})[0] == 2000


def test_a_model_without_blocks_is_gathered_as_a_whole() -> None:
    found = state("fsdp", ModelSize(parameters=1000, trained=900), ranks=3)
    assert (found[0], found[3]) == (4 * 334, 4 * (1000 + 900))


def test_offloaded_shards_leave_what_one_block_or_the_embedding_needs() -> None:
    gathered = state("fsdp")[3]
    assert state("fsdp", **fsdp(cpu_offload=True)) == (0, 0, 0, gathered + 2 * 4 * 25)
    embedding = ModelSize(parameters=1000, trained=1000, largest_block=200, outside_blocks=400)
    found = state("fsdp", embedding, **fsdp(cpu_offload=True))
    assert found[3] == state("fsdp", embedding)[3] + 2 * 4 * 50


def test_gradients_without_synchronisation_are_whole() -> None:
    assert state("fsdp", accumulates=True, **fsdp(accumulation="no_sync"))[1] == 4 * 1000
