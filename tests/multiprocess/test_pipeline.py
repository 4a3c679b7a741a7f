"""A GPT whose layers are split over ranks: it trains as on one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.config.config_tree import Config
from disttrain.records.metrics import Metrics
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.train import train
from tests.support.ranks import Ranks
from tests.support.stopping import alone

pytestmark = pytest.mark.multiprocess

GPT: dict[str, dict[str, Any]] = {
    "model": {"kind": "gpt", "layers": 4, "width": 16, "heads": 2, "tie_weights": False},
    "data": {"kind": "synthetic", "task": "language", "seq_len": 16, "vocab": 32, "valid_samples": 40},
    "train": {"steps": 6, "local_batch_size": 2, "global_batch_size": 16, "eval_samples": 27},
    "optim": {"lr": 1e-2, "grad_clip": 1.0},
    "telemetry": {"warmup_steps": 2, "sinks": []},
}


def made(ranks: int, stages: int = 1, schedule: str = "gpipe", **sections: dict[str, Any]) -> Config:
    parallel = {"strategy": "pipeline", "pipeline": {"stages": stages, "schedule": schedule}}
    base = {
        **GPT,
        "parallel": parallel if stages > 1 else {},
        "resources": {"gpus_per_node": ranks, "device": "cpu"},
    }
    names = {*base, *sections}
    return Config.model_validate({name: {**base.get(name, {}), **sections.get(name, {})} for name in names})


def train_on(world: World, config: Config, folder: Path) -> Metrics:
    return train(config, RunOutput.of_job(folder, 0), world)


def curve(metrics: Metrics) -> list[float]:
    return [point.loss for point in metrics.loss_history]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Metrics:
    return train_on(alone(), made(1), tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_two_stages_compute_what_one_rank_does(
    two_ranks: Ranks, one_rank: Metrics, tmp_path: Path, schedule: str
) -> None:
    assert_same(two_ranks.call(train_on, made(2, 2, schedule), tmp_path)[0], one_rank)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [2, 4])
def test_four_ranks_compute_what_one_does(
    four_ranks: Ranks, one_rank: Metrics, tmp_path: Path, stages: int, schedule: str
) -> None:
    """Four stages, or two replicas of two stages."""
    metrics = four_ranks.call(train_on, made(4, stages, schedule), tmp_path)[0]
    assert metrics.accumulation == 8 / (4 / stages)
    assert_same(metrics, one_rank)


def assert_same(metrics: Metrics, one_rank: Metrics) -> None:
    assert curve(metrics)[0] == pytest.approx(curve(one_rank)[0], rel=1e-7)
    assert curve(metrics) == pytest.approx(curve(one_rank), rel=1e-5)
    (point,), (expected,) = metrics.eval_history, one_rank.eval_history
    assert point.loss == pytest.approx(expected.loss, rel=1e-5)
    assert point.samples == expected.samples == 27  # of which the last batch of a replica is smaller
