"""Precision, gradient norm and skipped steps on several ranks, replicated and sharded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from disttrain.config.config_tree import Config
from disttrain.engine.train import batches_of, begin, run
from disttrain.parallel.base import build_strategy
from disttrain.records.metrics import Metrics
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.profiled.profiled_steps import _profiler, mark
from disttrain.telemetry.profiled.step_trace import END, comm_sample, read_trace
from disttrain.telemetry.step_clock import COMPUTE
from tests.support.ranks import Ranks
from tests.support.stopping import config
from tests.support.tolerance import AUTOCAST_DTYPES, approx_losses, tolerance

pytestmark = pytest.mark.multiprocess

GPT = {"kind": "gpt", "layers": 2, "width": 16, "heads": 2}
TEXT = {"kind": "synthetic", "task": "language", "vocab": 32, "seq_len": 8, "samples": 64, "valid_samples": 7}


def made(strategy: str, dtype: str = "fp32", **fsdp: Any) -> Config:
    return config(
        ranks=3,
        model=GPT,
        data=TEXT,
        train={"steps": 6, "local_batch_size": 4, "log_every": 1},
        optim={"grad_clip": 0.5, "weight_decay": 0.1},
        parallel={"strategy": strategy, "fsdp": fsdp},
        precision={"dtype": dtype},
        telemetry={"profiled_steps": 0, "gpu_every_s": 0},
    )


def train_with_overflow(
    world: World, config: Config, folder: Path, bad_rank: int | None, step: int
) -> tuple[Metrics, list[int], bool]:
    """Train; on `bad_rank`, one gradient becomes infinite in `step`. The skipped steps of this rank, and
    whether its parameters are finite."""
    output = RunOutput.of_job(folder, 0)
    output.attempt.path.mkdir(parents=True, exist_ok=True)
    trainer = begin(config, output, world)
    runner, skipped = trainer.stepper, []
    original = runner._update

    def update(number: int) -> Any:
        if number == step and world.rank == bad_rank:
            gradient = next(p.grad for p in runner.strategy.parameters(runner.model) if p.grad is not None)
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            local.flatten()[0].fill_(torch.inf)
        found = original(number)
        if found[1]:
            skipped.append(number)
        return found

    runner._update = update  # type: ignore[method-assign]
    with trainer:
        run(trainer, batches_of(trainer))
    parameters = [p.to_local() if hasattr(p, "to_local") else p for p in runner.model.parameters()]
    return trainer.metrics(), skipped, all(bool(p.isfinite().all()) for p in parameters)


@pytest.fixture(scope="module")
def replicated(three_ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Metrics:
    """The run of ddp in float32."""
    folder = tmp_path_factory.mktemp("replicated")
    return three_ranks.call(train_with_overflow, made("ddp"), folder, None, 0)[0][0]


@pytest.mark.parametrize(
    ("strategy", "dtype", "fsdp"),
    [
        ("fsdp", "fp32", {}),
        ("ddp", "bf16", {}),
        ("fsdp", "bf16", {}),
        ("fsdp", "bf16", {"reduce_dtype": "bf16"}),
        ("fsdp", "fp16", {}),
    ],
)
def test_losses_and_gradient_norms_are_those_of_float32(
    three_ranks: Ranks, tmp_path: Path, replicated: Metrics, strategy: str, dtype: str, fsdp: dict[str, Any]
) -> None:
    metrics = three_ranks.call(train_with_overflow, made(strategy, dtype, **fsdp), tmp_path, None, 0)[0][0]
    expected = [point.loss for point in replicated.loss_history]
    norms = [point.grad_norm for point in replicated.grad_norm_history]
    assert max(norms) > 0.5  # clipped
    losses, passes = approx_losses(expected), 2 * GPT["layers"]
    expected_norms = approx_losses(norms, sums=passes)
    if dtype != "fp32":
        half = AUTOCAST_DTYPES[dtype]
        losses = pytest.approx(expected, rel=tolerance(dtype=half))
        expected_norms = pytest.approx(norms, rel=tolerance(passes, half))
    assert [point.loss for point in metrics.loss_history] == losses
    assert [point.grad_norm for point in metrics.grad_norm_history] == expected_norms
    assert metrics.precision == dtype


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_an_infinity_in_one_shard_is_skipped_by_all_ranks(three_ranks, tmp_path, dtype) -> None:
    found = three_ranks.call(train_with_overflow, made("fsdp", dtype), tmp_path, 1, 3)
    assert [skipped for _, skipped, _ in found] == [[3]] * 3
    assert all(finite for _, _, finite in found)
    assert found[0][0].skipped_steps == 1


def poisoned(batches: Iterator[Any], step: int) -> Iterator[Any]:
    for number, (inputs, targets) in enumerate(batches, 1):
        yield (inputs * torch.nan if number == step else inputs), targets


def train_on_nan(world: World, config: Config, folder: Path) -> tuple[int, bool]:
    """Train with NaN in the batch of rank 1 in step 3: skipped steps, and whether the state is finite."""
    output = RunOutput.of_job(folder, 0)
    output.attempt.path.mkdir(parents=True, exist_ok=True)
    trainer = begin(config, output, world)
    batches = batches_of(trainer)
    with trainer:
        run(trainer, poisoned(batches, 3) if world.rank == 1 else batches)
        trainer.recorder.skipped_steps(True)
        skipped = trainer.recorder.steps.skipped_total
    state = trainer.model.state_dict().values()
    return skipped, all(bool(value.isfinite().all()) for value in state)


def test_a_bad_batch_of_one_rank_is_skipped_by_all_ranks(three_ranks, tmp_path) -> None:
    assert three_ranks.call(train_on_nan, config(ranks=3), tmp_path) == [(1, True)] * 3


def profiled_bytes(world: World, reduce_dtype: str) -> list[tuple[str, int | None]]:
    """Kind and bytes of each collective of a backward pass, by the telemetry's reading of the profiler."""
    config = made("fsdp", reduce_dtype=reduce_dtype)
    strategy = build_strategy("fsdp", config.parallel)
    strategy.autocast_dtype = torch.bfloat16
    mesh = strategy.mesh(world)
    model = strategy.apply(strategy.build(lambda: nn.Linear(6, 5, bias=False), world), mesh, world)
    loss = model(torch.ones(1, 6, dtype=torch.bfloat16)).sum()
    profiler = _profiler(world.device)
    with profiler:
        mark(COMPUTE)
        loss.backward()
        mark(END)
    step = comm_sample(1, read_trace(profiler))
    return [(each.kind, each.bytes) for each in step.collectives]


def test_gradients_reduced_in_bf16_are_half_the_bytes(three_ranks: Ranks) -> None:
    whole = three_ranks.call(profiled_bytes, "fp32")[0]
    half = three_ranks.call(profiled_bytes, "bf16")[0]
    gradient = 6 * 6 * 4  # 5 rows of float32, padded to 2 for each rank
    assert whole == [("all_reduce", gradient)], "gloo's form of a reduce-scatter"
    assert half == [("all_reduce", gradient / 2)]
