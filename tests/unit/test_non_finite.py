"""Steps whose gradients are not finite: skipped and counted, or the end of the run; never in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.checkpoint.folder import read_manifest
from disttrain.checkpoint.state import first_non_finite
from disttrain.config.config_tree import Config
from disttrain.engine.train import batches_of, begin, run
from disttrain.engine.trainer import Trainer
from disttrain.errors import NonFinite
from disttrain.optim import precision
from disttrain.optim.precision import LossScale
from disttrain.records.metrics import Metrics
from disttrain.runtime.run_output import RunOutput, record_failure
from tests.support.stopping import alone, config, recorded, train_until

STEPS = 12


def poisoned(batches: Iterator[Any], bad: range) -> Iterator[Any]:
    for number, (inputs, targets) in enumerate(batches, 1):
        yield inputs * torch.nan if number in bad else inputs, targets


def train_with(made: Config, path: Path, bad: range) -> tuple[Trainer, Metrics, list[bytes]]:
    output = RunOutput.of_job(path, 0)
    output.attempt.path.mkdir(parents=True, exist_ok=True)
    inputs: list[bytes] = []
    with begin(made, output, alone()) as trainer:
        run(trainer, poisoned(recorded(batches_of(trainer), inputs), bad))
    return trainer, trainer.metrics(), inputs


def step_lines(path: Path) -> list[dict[str, Any]]:
    lines = (path / "attempts/000/steps-00000.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def committed(path: Path) -> list[int]:
    return sorted(int(each.name.removeprefix("step-")) for each in (path / "checkpoints").glob("step-*"))


def test_a_bad_batch_is_skipped_and_counted(tmp_path):
    made = config()
    trainer, metrics, inputs = train_with(made, tmp_path / "bad", range(5, 7))
    _, undisturbed, expected = train_with(made, tmp_path / "good", range(0))
    assert (metrics.status, metrics.steps, metrics.skipped_steps) == ("completed", STEPS, 2)
    assert undisturbed.skipped_steps == 0
    assert inputs == expected  # the position in the data
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    lines, plain = step_lines(tmp_path / "bad"), step_lines(tmp_path / "good")
    assert [line["step"] for line in lines if line["skipped"]] == [5, 6]
    assert [line["lr"] for line in lines] == [line["lr"] for line in plain]
    assert [line["grad_norm"] for line in lines[:4]] == [line["grad_norm"] for line in plain[:4]]
    assert [line["step"] for line in lines if line["grad_norm"] is None] == [5, 6]
    curve = [(point.step, point.grad_norm) for point in metrics.grad_norm_history]
    assert curve == [(line["step"], line["grad_norm"]) for line in lines]


@pytest.mark.parametrize(
    ("precision", "bad", "message", "steps"),
    [
        (
            {"on_non_finite": "stop"},
            range(7, 8),
            "step 7: the gradients are not finite (precision.on_non_finite=stop)",
            [3, 6],
        ),
        (
            {"max_skipped": 4},
            range(5, 100),
            "4 steps in a row, up to step 8, have gradients that are not finite (precision.max_skipped=4)",
            [3, 6],
        ),
        (
            {"on_non_finite": "stop"},
            range(12, 13),
            "step 12: the gradients are not finite (precision.on_non_finite=stop)",
            [6, 9],
        ),
    ],
    ids=["stop", "in a row", "last step"],
)
def test_the_run_ends_with_a_cause_of_its_own(tmp_path, precision, bad, message, steps):
    made = config(precision=precision, checkpoint={"every_steps": 3, "best": False, "asynchronous": False})
    with pytest.raises(NonFinite) as raised:
        train_with(made, tmp_path, bad)
    assert str(raised.value) == message
    assert record_failure(raised.value, 0).cause == "non_finite"
    assert committed(tmp_path) == steps


def test_a_state_that_is_not_finite_is_never_committed(tmp_path):
    made = config(
        precision={"on_non_finite": "ignore"}, checkpoint={"every_steps": 2, "best": False, "keep": 9}
    )
    trainer, metrics, _ = train_with(made, tmp_path, range(5, 6))
    assert not all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    assert committed(tmp_path) == [2, 4]
    assert (metrics.checkpoint_step, metrics.checkpoints_failed) == (4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_the_tensor_that_is_not_finite_is_named(dtype, value):
    good, bad = torch.zeros(3, dtype=dtype), torch.tensor([1.0, value, 2.0], dtype=dtype)
    state = {"history.losses": bad, "model.step": torch.tensor(3), "model.a": good, "model.e": torch.zeros(0)}
    assert first_non_finite(state) is None
    assert first_non_finite({**state, "optimizer.b": bad}) == "optimizer.b"


def test_a_resumed_float16_run_takes_up_its_loss_scale(tmp_path, monkeypatch):
    """The scale changes before the stop; the resumed run goes on with it, to the same bits."""
    made = config(precision={"dtype": "fp16"})
    scales: list[LossScale] = []

    def quickly_growing(device: torch.device) -> LossScale:
        scales.append(LossScale(device, growth_interval=3))
        return scales[-1]

    monkeypatch.setattr(precision, "LossScale", quickly_growing)

    def attempt(path: Path, number: int, stop_after: int | None) -> Any:
        return train_until(alone(), made, path, number, stop_after)

    whole = attempt(tmp_path / "whole", 0, None)
    parts = [attempt(tmp_path / "parts", number, stop) for number, stop in enumerate([5, None])]
    assert parts[-1].parameters == whole.parameters
    assert parts[-1].metrics.grad_norm_history == whole.metrics.grad_norm_history
    [newest] = [path for path in (tmp_path / "parts/checkpoints").glob("step-*")]
    assert "precision.loss_scale" in read_manifest(newest).tensors
    first, stopped, resumed = [(scale.value.item(), scale.clean_steps.item()) for scale in scales]
    assert stopped[0] != 2.0**16, "the first scale"
    assert resumed == first
