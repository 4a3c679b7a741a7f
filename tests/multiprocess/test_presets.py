"""The presets of `sweeps/` train: each with its own options, only smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.config.parsing import check, load, with_batch
from disttrain.engine.train import train
from disttrain.records.metrics import Metrics
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from tests.support.stopping import alone

pytestmark = pytest.mark.multiprocess

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"
SMALL = {
    "model.size": "1M",
    "model.vocab_multiple": 96,  # pads the 256 bytes, which are a multiple of the preset's 128
    "data.path": str(SWEEPS.parent / "docs"),
    "data.seq_len": 16,
    "data.workers": 0,
    "train.steps": 4,
    "train.local_batch_size": 2,
    "train.eval_every": 2,
    "train.eval_samples": 8,
    "optim.warmup_steps": 1,
    "resources.gpus_per_node": 1,
    "resources.device": "cpu",
    "telemetry.warmup_steps": 1,
}
"""The size of the run and its device; every other option is that of the preset."""


def run(world: World, preset: str, folder: Path, more: dict[str, Any]) -> Metrics:
    draft = load(SWEEPS / f"{preset}.yaml")
    for key, value in {**SMALL, "resources.nodes": world.nodes, **more}.items():
        draft.set(key, value, "test")
    config, _ = with_batch(check(draft), draft)
    output = RunOutput.of_job(folder, 0)
    output.attempt.path.mkdir(parents=True, exist_ok=True)
    return train(config, output, world)


def falls(metrics: Metrics) -> bool:
    first, *_, last = metrics.eval_history
    return (metrics.status, metrics.steps) == ("completed", 4) and last.loss < first.loss


def test_development(tmp_path):
    metrics = run(alone(), "development", tmp_path, {"train.global_batch_size": 4})
    assert falls(metrics)
    assert (metrics.strategy, metrics.precision) == ("single", "fp32")
    assert [point.step for point in metrics.loss_history] == [1, 2, 3, 4]


def test_production(two_ranks, tmp_path):
    more = {"train.global_batch_size": 8, "compile.backend": "eager"}
    metrics, _ = two_ranks.call(run, "production", tmp_path, more)
    assert falls(metrics)
    assert (metrics.strategy, metrics.accumulation) == ("ddp", 2)
    assert metrics.checkpoint_step == 4


@pytest.mark.slow
def test_large_model(four_ranks, tmp_path):
    more = {"train.global_batch_size": 16, "compile.backend": "eager", "parallel.hsdp.shard_size": 2}
    metrics, *_ = four_ranks.call(run, "large-model", tmp_path, more)
    assert falls(metrics)
    assert (metrics.strategy, metrics.precision, metrics.accumulation) == ("hsdp", "bf16", 2)
    assert metrics.checkpoint_step == 4
