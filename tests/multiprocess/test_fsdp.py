"""Strategies fsdp and hsdp: initial weights, losses, evaluation and checkpoints of sharded models."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor

from disttrain.config.config_tree import Config
from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.config.sections.job import ResourcesConfig
from disttrain.config.sections.optim import OptimConfig
from disttrain.engine.kinds import build_model, build_source
from disttrain.parallel import fsdp
from disttrain.parallel.base import build_strategy
from disttrain.runtime.process_group import World
from tests.support.ranks import Ranks
from tests.support.stopping import MODEL, Seen, config, train_until
from tests.support.tolerance import approx_losses, tolerance

pytestmark = pytest.mark.multiprocess

GPT = {"kind": "gpt", "layers": 3, "width": 12, "heads": 2}
TEXT = {"kind": "synthetic", "task": "language", "vocab": 32, "seq_len": 8, "samples": 64, "valid_samples": 7}
STEPS = 6


def made(strategy: str, ranks: int, micro_steps: int = 1, model: dict[str, Any] = GPT, **fsdp: Any) -> Config:
    """A run whose global batch is 12, for any number of ranks."""
    local = 12 // ranks // micro_steps
    train = {
        "steps": STEPS,
        "local_batch_size": local,
        "global_batch_size": 12,
        "log_every": 1,
        "eval_every": 3,
    }
    data = TEXT if model is GPT else {"kind": "tests.support.small_models:source", "samples": 40}
    parallel = {"strategy": strategy, "fsdp": fsdp, "hsdp": {"shard_size": 2 if ranks == 4 else None}}
    return config(ranks=ranks, model=model, data=data, train=train, parallel=parallel)


def parallel_model(world: World, config: Config) -> nn.Module:
    """The model as a run builds it."""
    source = build_source(config.data)
    strategy = build_strategy(config.parallel.strategy, config.parallel)
    torch.manual_seed(0)
    model = strategy.build(lambda: build_model(config.model, source), world)
    torch.manual_seed(world.rank)
    return strategy.apply(model, strategy.mesh(world), world)


def initial_weights(world: World, config: Config) -> tuple[bool, int, int]:
    """Whether they are those of a model that was built on the CPU, their bytes on this rank, and in all."""
    model = parallel_model(world, config)
    torch.manual_seed(0)
    whole = build_model(config.model, build_source(config.data)).state_dict()
    equal = [torch.equal(full(value), whole[name]) for name, value in model.state_dict().items()]
    here = sum(value.to_local().nbytes for value in model.parameters() if isinstance(value, DTensor))
    return all(equal) and len(equal) == len(whole), here, sum(value.nbytes for value in model.parameters())


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize("meta_device", [True, False])
def test_ranks_hold_shards_of_the_weights_that_one_rank_would_have(three_ranks: Ranks, meta_device) -> None:
    found = three_ranks.call(initial_weights, made("fsdp", 3, meta_device=meta_device))
    assert all(equal for equal, _, _ in found)
    whole = found[0][2]
    assert sum(here for _, here, _ in found) == whole
    assert max(here for _, here, _ in found) < whole / 2.5


def test_pairs_of_ranks_hold_copies(four_ranks: Ranks) -> None:
    found = four_ranks.call(initial_weights, made("hsdp", 4))
    assert all(equal for equal, _, _ in found)
    assert sum(here for _, here, _ in found) == 2 * found[0][2]


def losses(ranks: Ranks, config: Config, folder: Path) -> tuple[list[float], list[float]]:
    """Of training and of validation."""
    metrics = ranks.call(train_until, config, folder, 0, None)[0].metrics
    return [p.loss for p in metrics.loss_history], [p.loss for p in metrics.eval_history]


@pytest.mark.parametrize("accumulation", ["reduce_scatter", "no_sync"])
def test_a_sharded_model_learns_what_a_replicated_one_does(three_ranks, tmp_path, accumulation) -> None:
    expected = losses(three_ranks, made("ddp", 3), tmp_path / "ddp")
    config = made("fsdp", 3, 2, accumulation=accumulation)
    found = losses(three_ranks, config, tmp_path / "fsdp")
    assert found == (approx_losses(expected[0]), pytest.approx(expected[1], rel=tolerance(STEPS)))


def test_running_statistics_are_those_of_ddp(three_ranks: Ranks, tmp_path: Path) -> None:
    """Each rank normalises its own samples; rank 0's statistics are validated and saved."""
    # a bias before a batch norm has a gradient of rounding errors only, which AdamW would scale up
    sgd = {"optim": OptimConfig(name="sgd", lr=0.1)}
    expected = losses(three_ranks, made("ddp", 3, model=MODEL).model_copy(update=sgd), tmp_path / "ddp")
    found = losses(three_ranks, made("fsdp", 3, model=MODEL).model_copy(update=sgd), tmp_path / "fsdp")
    assert found == (approx_losses(expected[0]), pytest.approx(expected[1], rel=tolerance(STEPS)))


def test_a_sharded_run_that_stops_and_resumes_is_the_run_that_never_stopped(three_ranks, tmp_path) -> None:
    config = made("fsdp", 3)
    whole = three_ranks.call(train_until, config, tmp_path / "whole", 0, None)
    for attempt, stop in enumerate([2, 4, None]):
        parts = three_ranks.call(train_until, config, tmp_path / "parts", attempt, stop)
    assert parts[0].metrics.loss_history == whole[0].metrics.loss_history
    assert [seen.parameters for seen in parts] == [seen.parameters for seen in whole]


def offloaded(world: World, config: Config, folder: Path, attempt: int, stop: int | None) -> Seen:
    """Training in which `fully_shard` gets its policy of offload, for which memory is not pinned."""
    policy = CPUOffloadPolicy(pin_memory=False)
    with patch.object(fsdp, "offload_policy", lambda options: policy):
        seen = train_until(world, config, folder, attempt, stop)
    return seen


def test_offloaded_shards_are_clipped_scaled_saved_and_resumed_as_others(two_ranks, tmp_path) -> None:
    base = placed(made("fsdp", 2, 2), two_ranks).as_dict() | {"precision": {"dtype": "fp16"}}
    base["parallel"] = {"strategy": "fsdp", "fsdp": {"cpu_offload": True}}
    whole = two_ranks.call(offloaded, Config.model_validate(base), tmp_path / "offloaded", 0, None)
    for attempt, stop in enumerate([3, None]):
        parts = two_ranks.call(offloaded, Config.model_validate(base), tmp_path / "parts", attempt, stop)
    base["parallel"] = {"strategy": "fsdp"}
    on_device = two_ranks.call(train_until, Config.model_validate(base), tmp_path / "on device", 0, None)
    for found in (parts, on_device):
        assert found[0].metrics.loss_history == whole[0].metrics.loss_history
        assert found[0].metrics.grad_norm_history == whole[0].metrics.grad_norm_history
        assert [seen.parameters for seen in found] == [seen.parameters for seen in whole]


CHANGES = [
    ("fsdp", 2, "hsdp", 4),
    ("fsdp", 2, "fsdp", 4),
    pytest.param("fsdp", 2, "ddp", 3, marks=pytest.mark.slow),
    pytest.param("ddp", 2, "fsdp", 3, marks=pytest.mark.slow),
    pytest.param("hsdp", 4, "fsdp", 3, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("first", "ranks", "second", "later_ranks"), CHANGES)
def test_a_checkpoint_continues_under_another_strategy_and_world_size(
    tmp_path: Path, request: pytest.FixtureRequest, first: str, ranks: int, second: str, later_ranks: int
) -> None:
    fixture = {2: "two_ranks", 3: "three_ranks", 4: "four_ranks"}
    early: Ranks = request.getfixturevalue(fixture[ranks])
    late: Ranks = request.getfixturevalue(fixture[later_ranks])
    whole = early.call(train_until, placed(made(first, ranks), early), tmp_path / "whole", 0, None)
    early.call(train_until, placed(made(first, ranks), early), tmp_path / "stopped", 0, 3)
    start = {"start_from": str(tmp_path / "stopped" / "checkpoints" / "step-00000003")}
    config = placed(made(second, later_ranks), late)
    config = config.model_copy(update={"checkpoint": CheckpointConfig(**start)})
    found = late.call(train_until, config, tmp_path / "resumed", 0, None)
    assert found[0].metrics.resumed_step == 3
    assert [point.loss for point in found[0].metrics.loss_history] == approx_losses(
        [point.loss for point in whole[0].metrics.loss_history]
    )


def placed(config: Config, ranks: Ranks) -> Config:
    """`config` on the nodes that `ranks` stand for."""
    nodes = {2: 2, 3: 1, 4: 4}[ranks.size]
    return config.model_copy(
        update={"resources": ResourcesConfig(nodes=nodes, gpus_per_node=ranks.size // nodes)}
    )
