"""A GPT whose layers are split over ranks: it trains as on one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.config.config_tree import Config
from disttrain.config.sections.parallel import ParallelConfig
from disttrain.engine.train import batches_of, begin, run, train
from disttrain.models.gpt import GPT
from disttrain.parallel.pipeline import build
from disttrain.records.dataset import DataShape
from disttrain.records.json_files import read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.steps import PHASES, Step
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from tests.support.ranks import RankFailed, Ranks
from tests.support.stopping import alone, train_until
from tests.support.tolerance import AUTOCAST_DTYPES, approx_losses, tolerance

pytestmark = pytest.mark.multiprocess

SMALL: dict[str, dict[str, Any]] = {
    "model": {"kind": "gpt", "layers": 4, "width": 16, "heads": 2, "tie_weights": False},
    "data": {"kind": "synthetic", "task": "language", "seq_len": 16, "vocab": 32, "valid_samples": 40},
    "train": {"steps": 6, "local_batch_size": 2, "global_batch_size": 16, "eval_samples": 27},
    "optim": {"lr": 1e-2, "grad_clip": 1.0},
    "telemetry": {"warmup_steps": 2, "sinks": []},
}


def made(ranks: int, stages: int = 1, schedule: str = "gpipe", **sections: dict[str, Any]) -> Config:
    parallel = {"strategy": "pipeline", "pipeline": {"stages": stages, "schedule": schedule}}
    base = {
        **SMALL,
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


def test_compiled_blocks_compute_the_same(two_ranks: Ranks, one_rank: Metrics, tmp_path: Path) -> None:
    compiled = made(2, 2, compile={"scope": "blocks", "backend": "eager"})
    assert_same(two_ranks.call(train_on, compiled, tmp_path)[0], one_rank)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_stages_under_autocast_compute_what_one_rank_does(
    four_ranks: Ranks, one_rank: Metrics, tmp_path: Path, dtype: str
) -> None:
    """Two replicas of two stages. The order of summation over replicas changes rounding."""
    precision = {"dtype": dtype}
    expected = train_on(alone(), made(1, precision=precision), tmp_path / "one")
    metrics = four_ranks.call(train_on, made(4, 2, "1f1b", precision=precision), tmp_path / "four")[0]
    assert (metrics.precision, metrics.skipped_steps) == (dtype, expected.skipped_steps)
    within = tolerance(dtype=AUTOCAST_DTYPES[dtype])
    assert curve(metrics) == pytest.approx(curve(expected), rel=within)
    assert metrics.eval_history[0].loss == pytest.approx(expected.eval_history[0].loss, rel=within)
    assert curve(metrics) == pytest.approx(curve(one_rank), rel=within)
    assert curve(metrics) != approx_losses(curve(one_rank)), "the stages compute in float32"


def overflow_on(world: World, config: Config, folder: Path) -> tuple[int, list[float], bool]:
    """Train with a loss scale that overflows on the first steps: skipped steps, scale, finite weights."""
    output = RunOutput.of_job(folder, 0)
    output.attempt.path.mkdir(parents=True, exist_ok=True)
    trainer = begin(config, output, world)
    scale = trainer.stepper.precision.loss_scale
    assert scale is not None
    scale.value.fill_(2.0**40)
    with trainer:
        run(trainer, batches_of(trainer))
    metrics = trainer.metrics()
    finite = all(bool(p.isfinite().all()) for p in trainer.stepper.model.parameters())
    return metrics.skipped_steps if world.rank == 0 else -1, [scale.value.item()], finite


def test_an_overflow_is_skipped_by_all_stages(two_ranks: Ranks, tmp_path: Path) -> None:
    config = made(2, 2, precision={"dtype": "fp16"}, train={"steps": 30})
    first, last = two_ranks.call(overflow_on, config, tmp_path)
    assert first[0] > 0
    assert first[1] == last[1] == [2.0 ** (40 - first[0])]
    assert first[2]
    assert last[2]


def assert_same(metrics: Metrics, one_rank: Metrics) -> None:
    assert curve(metrics) == approx_losses(curve(one_rank))
    (point,), (expected,) = metrics.eval_history, one_rank.eval_history
    assert point.loss == pytest.approx(expected.loss, rel=tolerance(one_rank.steps))
    assert point.samples == expected.samples == 27  # of which the last batch of a replica is smaller


def built(world: World) -> tuple[set[str], int, dict[str, torch.Tensor]]:
    """Devices of the whole model, bytes of this rank's stage, and its weights."""
    config = ParallelConfig.model_validate({"strategy": "pipeline"})
    strategy = build(config)
    torch.manual_seed(0)
    model = strategy.build(gpt, world)
    devices = {parameter.device.type for parameter in model.parameters()}
    stage = strategy.apply(model, strategy.mesh(world), world)
    return devices, sum(p.nbytes for p in stage.parameters()), stage.state_dict()


def gpt() -> GPT:
    words = DataShape(task="language", shape=(8,), classes=11)
    return GPT(words, layers=3, width=8, heads=2, mlp_ratio=2, tie_weights=False)


def test_a_rank_holds_its_own_layers_alone_with_the_weights_of_the_whole_model(two_ranks: Ranks) -> None:
    torch.manual_seed(0)
    whole = gpt()
    (_, first_bytes, first), (devices, last_bytes, last) = two_ranks.call(built)
    assert devices == {"meta"}, "the whole model has memory on rank 0 alone"
    assert first_bytes + last_bytes == sum(p.nbytes for p in whole.parameters())
    assert {name.partition(".")[0] for name in first} == {"embed", "blocks"}
    for name, value in whole.state_dict().items():
        assert torch.equal((first | last)[name], value)


def test_a_checkpoint_of_stages_continues_on_one_rank_and_back(
    two_ranks: Ranks, four_ranks: Ranks, one_rank: Metrics, tmp_path: Path
) -> None:
    """Two stages for two steps, one rank for two, two replicas of two stages to the end."""
    two_ranks.call(train_on, made(2, 2, checkpoint={"every_steps": 2, "keep": 9}), tmp_path / "two")
    first = {
        "start_from": str(tmp_path / "two" / "checkpoints" / "step-00000002"),
        "every_steps": 2,
        "keep": 9,
    }
    train_on(alone(), made(1, checkpoint=first), tmp_path / "one")
    second = {"start_from": str(tmp_path / "one" / "checkpoints" / "step-00000004")}
    last = four_ranks.call(train_on, made(4, 2, "1f1b", checkpoint=second), tmp_path / "four")[0]
    assert last.resumed_step == 4
    assert_same(last, one_rank)


def test_a_resumed_pipeline_computes_what_one_that_never_stopped_does(
    four_ranks: Ranks, tmp_path: Path
) -> None:
    config = made(4, 2, model={"dropout": 0.1}, job={"stop_check_s": 0})
    whole = four_ranks.call(train_until, config, tmp_path / "whole", 0, None)
    four_ranks.call(train_until, config, tmp_path / "parts", 0, 3)
    parts = four_ranks.call(train_until, config, tmp_path / "parts", 1, None)
    assert parts[0].metrics.resumed_step == 3
    assert [seen.parameters for seen in parts] == [seen.parameters for seen in whole]
    assert parts[0].metrics.loss_history == whole[0].metrics.loss_history
    assert [seen.inputs for seen in whole[:2]] == [seen.inputs for seen in whole[2:]], "stages read the same"


def test_a_checkpoint_of_another_number_of_layers_is_refused_on_all_ranks(
    two_ranks: Ranks, tmp_path: Path
) -> None:
    two_ranks.call(train_on, made(2, 2, train={"steps": 1}, checkpoint={"every_steps": 1}), tmp_path / "a")
    start = {"start_from": str(tmp_path / "a" / "checkpoints" / "step-00000001")}
    more = made(2, 2, model={"layers": 5}, checkpoint=start)
    with pytest.raises(RankFailed, match=r"(?s)rank 0:.*blocks\.4\.\S+ is not in it.*rank 1:.*is not in it"):
        two_ranks.call(train_on, more, tmp_path / "b")


def test_time_without_a_pass_is_exposed_communication(two_ranks: Ranks, tmp_path: Path) -> None:
    metrics = two_ranks.call(train_on, made(2, 2), tmp_path)[0]
    assert metrics.comm_method == "pipeline_schedule"
    assert metrics.communication_overhead_percent is not None
    assert metrics.null_reasons["comm"].startswith("the ranks exchange different messages")
    for rank in range(2):
        for line in read_jsonl(RunOutput.of_job(tmp_path, 0).attempt.steps(rank)):
            step = Step.model_validate(line)
            assert sum(getattr(step, name) for name in PHASES) == pytest.approx(step.step_s, abs=1e-6)
            assert step.comm_wait_s is not None
            assert step.compute_s > 0
            assert step.comm_wait_s > 0, "each stage waits while the pipeline fills or drains"
            assert step.comm_transfer_s is not None
            assert step.comm_transfer_s > 0, "the all-reduce of the gradient norm"
