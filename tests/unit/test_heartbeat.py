"""The heartbeat of a rank: its position, and the limit of its phase."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem

from disttrain.checkpoint import storage
from disttrain.config.batch_plan import BatchPlan
from disttrain.records.heartbeat import FOLDER_VARIABLE, SCRIPT_TIMEOUT_VARIABLE, Heartbeat, read_heartbeats
from disttrain.runtime.rank_heartbeat import RankHeartbeat, heartbeat
from disttrain.telemetry.recorder import ScriptWatch
from disttrain.telemetry.step_clock import HostClock
from tests.support.steppers import stepper

TIMEOUTS = {"setup": 600.0, "step": 60.0, "checkpoint": 500.0, "evaluation": 400.0, "finish": 600.0}


@pytest.fixture
def position(monkeypatch: pytest.MonkeyPatch) -> RankHeartbeat:
    """The position of this process, with a clock that stands still unless a test sets it."""
    set_clock(monkeypatch, 0.0)
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    heartbeat.start(3, TIMEOUTS)
    return heartbeat


def set_clock(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: now)


def writing_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_three_times_the_99th_percentile_of_the_steps(
    position: RankHeartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    heartbeat.enter("step")
    assert position.limit_s("step") == 600.0, "the first step belongs to the set-up"
    for step, seconds in enumerate([500.0] + [1.0] * 97 + [40.0, 30.0], start=1):
        now += seconds
        set_clock(monkeypatch, now)
        heartbeat.step_done(step)
        if step == 1:
            assert position.limit_s("step") == 1500.0, "the first steps compile"
    assert position.at == ("step", 100, now)
    assert position.limit_s("step") == 3 * 40.0, "one step in a hundred may take longer"
    assert position.limit_s("checkpoint") == 500.0
    for step in range(101, 1201):
        heartbeat.step_done(step)
    assert position.limit_s("step") == 60.0, "only the newest thousand count"


def test_another_phase_is_no_part_of_a_step(position: RankHeartbeat, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat.enter("step")
    with heartbeat.within("evaluation"):
        assert position.at[0] == "evaluation"
        set_clock(monkeypatch, 200.0)
    assert position.at == ("step", 0, 200.0)
    assert position.limit_s("evaluation") == 3 * 200.0
    set_clock(monkeypatch, 201.0)
    heartbeat.step_done(1)
    assert position.limit_s("step") == 60.0


def test_each_batch_of_a_validation_is_progress(
    position: RankHeartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four batches of 300 s each: the limit is three times 300 s, not three times 1200 s."""
    began: list[float] = []

    class SlowModel(torch.nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            began.append(position.at[2])
            set_clock(monkeypatch, 300.0 * len(began))
            return super().forward(inputs)

    samples = [(torch.ones(2), torch.tensor(0)) for _ in range(8)]
    made = stepper(SlowModel(2, 3), BatchPlan(2, 1, 1))
    with heartbeat.within("evaluation"):
        made.validate(samples, step=0)
        assert began == [0.0, 300.0, 600.0, 900.0]
        assert position.at == ("evaluation", 0, 1200.0)
    assert position.limit_s("evaluation") == 900.0


def test_each_written_part_of_a_checkpoint_is_progress(
    position: RankHeartbeat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def since() -> float:
        position.beat(tmp_path, 0, threading.get_ident())
        return read_heartbeats(tmp_path)[0].since

    seen: list[float] = []
    write_item = DefaultSavePlanner.resolve_data

    def slow(planner: DefaultSavePlanner, item: WriteItem) -> object:
        seen.append(since())
        set_clock(monkeypatch, 300.0 * len(seen))
        return write_item(planner, item)

    monkeypatch.setattr(DefaultSavePlanner, "resolve_data", slow)
    share = {name: torch.ones(2) for name in "abc"}
    with heartbeat.within("checkpoint"):
        storage.write(share, tmp_path / "checkpoint", 0)
        assert seen == [0.0, 300.0, 600.0]
        assert since() == 900.0, "the file is on disk"
        set_clock(monkeypatch, 1000.0)
    assert since() == 1000.0
    heartbeat.checkpoint_part_written()
    set_clock(monkeypatch, 1050.0)
    heartbeat.checkpoint_part_written()
    assert since() == 1000.0, "a checkpoint in the background is no progress of training"


def test_it_is_rewritten_while_the_main_thread_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr("disttrain.runtime.rank_heartbeat.INTERVAL_S", 0.01)
    heartbeat.start(3, TIMEOUTS)

    def newest(after_s: float = 0.0) -> Heartbeat:
        while not (found := read_heartbeats(tmp_path)) or found[0].written <= after_s:
            time.sleep(0.01)
        return found[0]

    first = newest(time.monotonic() + 0.05)
    assert (first.rank, first.phase, first.step, first.waiting) == (3, "setup", 0, False)
    assert first.where.startswith("test_heartbeat.py:")
    heartbeat.enter("step")
    heartbeat.step_done(5)
    with heartbeat.collective():
        with suppress(RuntimeError), heartbeat.collective():
            raise RuntimeError
        assert newest(time.monotonic() + 0.05).waiting
    assert not newest(time.monotonic() + 0.05).waiting
    heartbeat.communicates_while(lambda: True)
    later = newest(time.monotonic() + 0.05)
    assert (later.phase, later.step, later.waiting, later.limit_s) == ("step", 5, True, 60.0)
    heartbeat.stop()
    assert read_heartbeats(tmp_path) == []


def test_a_rank_that_cannot_write_its_heartbeat_is_not_watched(
    position: RankHeartbeat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beat() -> list[int]:
        position.beat(tmp_path, 3, threading.get_ident())
        return [each.rank for each in read_heartbeats(tmp_path)]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert beat() == [3]
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert beat() == [], "a heartbeat that stays would age, like that of a stopped rank"
        assert beat() == []
    assert beat() == [3]


def test_a_script_is_watched_between_its_first_and_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    clock = HostClock()
    ScriptWatch(0, clock, steps=9).step_done(3)
    assert not writing_threads(), "its run has no limit"
    monkeypatch.setenv(SCRIPT_TIMEOUT_VARIABLE, "7")
    watch = ScriptWatch(1, clock, steps=9)
    for step in (3, 4):
        watch.step_done(step)
    while [(each.rank, each.step, each.limit_s) for each in read_heartbeats(tmp_path)] != [(1, 4, 7.0)]:
        time.sleep(0.01)
    watch.step_done(9)
    assert read_heartbeats(tmp_path) == []
    assert not writing_threads()
    watch.close()


def test_without_a_folder_nothing_is_written(position: RankHeartbeat) -> None:
    assert not writing_threads()
