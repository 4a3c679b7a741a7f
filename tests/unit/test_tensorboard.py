"""TensorBoard's files: complete for its readers, in few calls to the file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disttrain.errors import ConfigError
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.telemetry import sinks
from disttrain.telemetry.sinks import tensorboard


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return RunDir(tmp_path).attempt(0)


def curves(attempt: Attempt) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(attempt.tensorboard)).Reload()
    return {
        tag: [(each.step, pytest.approx(each.value)) for each in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_the_scalars(attempt: Attempt) -> None:
    sink = tensorboard.build(attempt)
    sink.scalars(1, {"loss/train": 2.5, "lr": 0.1})
    sink.scalars(2, {"loss/train": float("inf"), "lr": 1e-30})
    sink.close()
    assert curves(attempt) == {
        "loss/train": [(1, 2.5), (2, float("inf"))],
        "lr": [(1, 0.1), (2, pytest.approx(1e-30, rel=1e-6))],
    }


def test_scalars_are_appended_at_intervals(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(tensorboard.time, "monotonic", lambda: now)
    sink = tensorboard.build(attempt)
    writes: list[int] = []
    write = os.write
    monkeypatch.setattr(
        tensorboard.os, "write", lambda file, data: writes.append(len(data)) or write(file, data)
    )
    for step in range(61):
        sink.scalars(step, {"loss/train": 1.0})
        now += 1
    assert len(writes) == 60 / tensorboard.WRITE_EVERY_S
    assert curves(attempt)["loss/train"][-1][0] == 60
    sink.close()


def test_a_full_disk_is_an_error(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = tensorboard.build(attempt)
    sink.scalars(1, {"loss/train": 1.0})

    def full(*_: object) -> int:
        raise OSError("full")

    monkeypatch.setattr(tensorboard.os, "write", full)
    with pytest.raises(OSError, match="full"):
        sink.close()


def test_the_files_of_an_attempt_open_in_their_own_reader(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(3)
    sink = sinks.open_sink("tensorboard", attempt)
    sink.scalars(7, {"loss/train": 2.5})
    sink.close()
    assert attempt.tensorboard == tmp_path / "tensorboard" / "003"
    assert curves(attempt) == {"loss/train": [(7, 2.5)]}


def test_an_unknown_sink_is_refused(attempt: Attempt) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.sinks='tensorbord' cannot be imported"):
        sinks.open_sink("tensorbord", attempt)
