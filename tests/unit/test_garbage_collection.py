"""Garbage is collected at the configured steps and at no other; Python's own setting returns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disttrain.engine.train import batches_of, begin, run, train
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.steps import StepResult
from tests.support import stopping


@pytest.fixture
def low_threshold() -> Iterator[None]:
    """Automatic collection at every few objects, so that each step of a run has some."""
    before = gc.get_threshold()
    gc.set_threshold(50, 5, 5)
    yield
    gc.set_threshold(*before)


def collections_by_step(gc_every: int, folder: Path) -> dict[int, list[int]]:
    """Generations of the collections that began within or after each step of a run, by step."""
    made = stopping.config(train={"gc_every": gc_every}, telemetry={"profiled_steps": 0, "gpu_every_s": 0})
    trainer = begin(made, RunOutput.of_job(folder, 0), stopping.alone())
    original, found, now = trainer.stepper.step, {}, [0]

    def stepped(step: int, batches: Any) -> StepResult:
        now[0] = step
        found[step] = []
        return original(step, batches)

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and now[0]:
            found[now[0]].append(info["generation"])

    trainer.stepper.step = stepped  # type: ignore[method-assign]
    gc.callbacks.append(collected)
    try:
        with trainer:
            run(trainer, batches_of(trainer))
            frozen, now[0] = gc.get_freeze_count(), 0
    finally:
        gc.callbacks.remove(collected)
    assert (frozen > 1000) is (gc_every > 0)
    return found


def test_collections_are_at_the_configured_steps_alone(tmp_path: Path, low_threshold: None) -> None:
    found = collections_by_step(5, tmp_path)
    assert {step: kinds for step, kinds in found.items() if kinds} == {5: [2], 10: [2]}


def test_without_the_option_python_collects_in_any_step(tmp_path: Path, low_threshold: None) -> None:
    found = collections_by_step(0, tmp_path)
    assert sum(bool(kinds) for kinds in found.values()) > 6


def test_the_setting_of_python_returns_after_a_run_and_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stopping.config(train={"gc_every": 2, "steps": 3})
    states: list[bool] = []
    original = run

    def loop(trainer: Any, batches: Any) -> None:
        original(trainer, batches)
        states.append(gc.isenabled())
        raise OSError("full")

    monkeypatch.setattr("disttrain.engine.train.run", loop)
    output = RunOutput.of_job(tmp_path, 0)
    output.attempt.path.mkdir(parents=True)
    with pytest.raises(OSError, match="full"):
        train(made, output, stopping.alone())
    assert states == [False]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
