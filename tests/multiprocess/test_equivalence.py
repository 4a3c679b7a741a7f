"""Every strategy on 1, 2 and 4 ranks trains as one rank does alone, and goes on from any other's checkpoint.

A chain of two runs has the global batch of the reference, which is `single` on one rank: the first takes
three steps and saves, the second starts from that checkpoint under another layout and takes three more. Loss,
validation loss and metrics of both are those of the reference.

A learning rate 1 % higher moves each curve by more than ten times the tolerance. The MLP is trained with SGD,
since AdamW does not see a gradient that is too large by a factor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from disttrain.config.config_tree import Config
from disttrain.engine.train import train
from disttrain.records.metrics import Metrics
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from tests.support.ranks import Ranks
from tests.support.tolerance import approx_losses, tolerance

pytestmark = pytest.mark.multiprocess

STRATEGIES = ("ddp", "fsdp", "hsdp")
WORLDS = (1, 2, 4)
BATCH, HALF = 16, 3
SMALL = "tests.support.small_models"

MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "gpt": {
        "model": {"kind": "gpt", "layers": 2, "width": 16, "heads": 2},
        "data": {"kind": "text", "seq_len": 16},
        "optim": {"lr": 3e-3, "grad_clip": 0.5, "weight_decay": 0.1},
    },
    "resnet": {
        "model": {"kind": f"{SMALL}:small_resnet", "transforms": ["group_norm"]},
        "data": {"kind": "digits"},
        "optim": {"lr": 1e-2},
    },
    "mlp": {
        "model": {"kind": "mlp", "hidden": [12, 8]},
        "data": {"kind": "digits"},
        "optim": {"name": "sgd", "lr": 0.05, "grad_clip": 1.0},
    },
}


@dataclass(frozen=True)
class Layout:
    strategy: str
    ranks: int
    accumulation: int

    def __str__(self) -> str:
        return f"{self.strategy}-{self.ranks}-accumulation-{self.accumulation}"


SINGLE = Layout("single", 1, 1)


def config_of(model: str, layout: Layout, steps: int, start_from: Path | None, **optim: float) -> Config:
    base = MODELS[model]
    options = {"hsdp": {"shard_size": min(2, layout.ranks)}} if layout.strategy == "hsdp" else {}
    return Config.model_validate(
        {
            **base,
            "optim": {**base["optim"], **optim},
            "train": {
                "steps": steps,
                "global_batch_size": BATCH,
                "local_batch_size": BATCH // layout.ranks // layout.accumulation,
                "log_every": 1,
                "eval_every": HALF,
                "eval_samples": 11,  # on no number of ranks but one equally many each
            },
            "parallel": {"strategy": layout.strategy, **options},
            "resources": {"nodes": 1, "gpus_per_node": layout.ranks, "device": "cpu"},
            "checkpoint": {"every_steps": HALF, "start_from": start_from and str(start_from)},
            "telemetry": {"sinks": [], "profiled_steps": 0, "warmup_steps": 0},
        }
    )


Train = Callable[..., Metrics]


def on_this_rank(
    world: World,
    model: str,
    layout: Layout,
    steps: int,
    folder: Path,
    start_from: Path | None,
    **optim: float,
) -> Metrics:
    world = replace(world, local_rank=world.rank, local_size=world.size)
    return train(config_of(model, layout, steps, start_from, **optim), RunOutput.of_job(folder, 0), world)


@pytest.fixture(scope="module")
def run(two_ranks: Ranks, four_ranks: Ranks) -> Iterator[Train]:
    """Trains under a layout; the metrics of rank 0."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)

    def call(model: str, layout: Layout, *arguments: Any, **optim: float) -> Metrics:
        if layout.ranks == 1:
            return on_this_rank(alone, model, layout, *arguments, **optim)
        ranks = two_ranks if layout.ranks == 2 else four_ranks
        return ranks.call(on_this_rank, model, layout, *arguments)[0]

    yield call
    torch.set_num_threads(threads)
    if dist.is_initialized():
        dist.destroy_process_group()


def assert_same(found: Metrics, reference: Metrics, first_step: int) -> None:
    """Losses, validation losses and metrics from `first_step` on."""
    assert curve(found, first_step) == approx_losses(curve(reference, first_step, found.steps), first_step)
    evaluations = evaluated(found, first_step)
    assert evaluations, "each half ends with a validation"
    for step, loss, metrics, samples in evaluated(reference, first_step, found.steps):
        its_loss, its_metrics, its_samples = evaluations.pop(0)[1:]
        assert (its_samples, its_loss) == (samples, pytest.approx(loss, rel=tolerance(step))), step
        assert its_metrics == pytest.approx(metrics, rel=tolerance(step))


def curve(metrics: Metrics, first_step: int, last_step: int = 2 * HALF) -> list[float]:
    losses = [point.loss for point in metrics.loss_history if first_step <= point.step <= last_step]
    assert len(losses) == min(last_step, metrics.steps) + 1 - first_step
    return losses


def evaluated(metrics: Metrics, first_step: int, last_step: int = 2 * HALF) -> list[tuple[Any, ...]]:
    points = [point for point in metrics.eval_history if first_step <= point.step <= last_step]
    return [(point.step, point.loss, point.metrics, point.samples) for point in points]


def chains(shift: int) -> list[tuple[Layout, Layout]]:
    """Each strategy on each number of ranks once as the first half, and once as the second, `shift` later."""
    layouts = list(itertools.product(STRATEGIES, WORLDS))
    shifted = layouts[shift:] + layouts[:shift]
    return [(Layout(*first, 1), Layout(*second, 4)) for first, second in zip(layouts, shifted, strict=True)]


SHIFTS = {"gpt": 0, "resnet": 1, "mlp": len(WORLDS) + 1}
"""By model: a resumed run goes on under the same layout; on another number of ranks; also under another
strategy."""


def check(run: Train, model: str, cases: list[tuple[Layout, Layout]], folder: Path) -> None:
    reference = run(model, SINGLE, 2 * HALF, folder / "reference", None)
    for first, second in cases:
        name = f"{first}-then-{second}"
        before = run(model, first, HALF, folder / name / "first", None)
        assert_same(before, reference, 1)
        checkpoint = folder / name / "first" / "checkpoints" / f"step-{HALF:08d}"
        after = run(model, second, 2 * HALF, folder / name / "second", checkpoint)
        assert (before.strategy, after.strategy, after.resumed_step) == (
            first.strategy,
            second.strategy,
            HALF,
        )
        assert_same(after, reference, HALF + 1)


def test_fsdp_on_two_ranks_after_and_before_others(run: Train, tmp_path: Path) -> None:
    sharded = Layout("fsdp", 2, 4)
    check(run, "mlp", [(Layout("ddp", 2, 1), sharded), (SINGLE, sharded), (sharded, SINGLE)], tmp_path)


@pytest.mark.parametrize("model", MODELS)
def test_the_tolerance_shows_a_learning_rate_one_percent_higher(
    run: Train, tmp_path: Path, model: str
) -> None:
    reference = curve(run(model, SINGLE, 2 * HALF, tmp_path / "reference", None), 1)
    higher = 1.01 * MODELS[model]["optim"]["lr"]
    other = curve(run(model, SINGLE, 2 * HALF, tmp_path / "higher", None, lr=higher), 1)
    assert other != approx_losses(reference, sums=10)


def automatic(world: World, folder: Path, device_bytes: float | None) -> Metrics:
    """Training under `auto`, with devices of this memory."""
    limit: AbstractContextManager[Any] = nullcontext()
    if device_bytes is not None:
        limit = patch("disttrain.engine.memory_estimate.total_memory", lambda ranks: device_bytes)
    with limit:
        return on_this_rank(world, "mlp", Layout("auto", world.size, 1), HALF, folder, None)


def test_auto_shards_a_model_that_does_not_fit(two_ranks: Ranks, tmp_path: Path) -> None:
    fits = two_ranks.call(automatic, tmp_path / "fits", None)[0]
    assert fits.strategy == "ddp"
    assert "ddp needs" in fits.strategy_reason
    too_large = two_ranks.call(automatic, tmp_path / "too large", 1e4)[0]
    assert too_large.strategy == "fsdp"
    assert too_large.strategy_reason.startswith("ddp needs ")
    assert "; fsdp needs" in too_large.strategy_reason
    assert curve(too_large, 1) == approx_losses(curve(fits, 1))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_strategy_on_1_2_and_4_ranks(run: Train, tmp_path: Path, model: str) -> None:
    cases = chains(SHIFTS[model] % (len(STRATEGIES) * len(WORLDS)))
    alone = [(SINGLE, Layout("single", 1, 4)), (Layout("dp", 1, 1), Layout("dp", 1, 4))]
    check(run, model, [*alone, *cases], tmp_path)
