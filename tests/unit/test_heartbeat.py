"""Heartbeats of a rank: where it is, since when, and after which time it counts as hung."""

import errno
import os
import threading
import time
from contextlib import suppress

import pytest
import torch
from torch.distributed.checkpoint import DefaultSavePlanner

from disttrain.checkpoint import storage
from disttrain.config.batch_plan import BatchPlan
from disttrain.records.heartbeat import FOLDER_VARIABLE, SCRIPT_TIMEOUT_VARIABLE, read_heartbeats
from disttrain.runtime.rank_heartbeat import heartbeat
from disttrain.telemetry.recorder import ScriptWatch
from disttrain.telemetry.step_clock import StepClock
from tests.support.steppers import stepper

TIMEOUTS = {"setup": 600.0, "step": 60.0, "checkpoint": 500.0, "evaluation": 400.0, "finish": 600.0}


@pytest.fixture
def at(monkeypatch):
    """Sets the clock of a rank whose heartbeats no thread writes."""

    def set_clock(now):
        monkeypatch.setattr(time, "monotonic", lambda: now)

    set_clock(0.0)
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    heartbeat.start(3, TIMEOUTS)
    assert not writing_threads()
    return set_clock


def writing_threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_three_times_the_99th_percentile_of_the_newest_steps(at):
    now = 0.0
    heartbeat.enter("step")
    assert heartbeat.limit_s("step") == 600.0, "the first step belongs to the set-up"
    for step, seconds in enumerate([500.0] + [1.0] * 97 + [40.0, 30.0], start=1):
        now += seconds
        at(now)
        heartbeat.step_done(step)
        if step == 1:
            assert heartbeat.limit_s("step") == 1500.0, "the first steps compile"
    assert heartbeat.at == ("step", 100, now)
    assert heartbeat.limit_s("step") == 3 * 40.0, "one step in a hundred may take longer"
    assert heartbeat.limit_s("checkpoint") == 500.0
    for step in range(101, 1201):
        heartbeat.step_done(step)
    assert heartbeat.limit_s("step") == 60.0, "only the newest thousand count"


def test_another_phase_is_no_part_of_a_step_nor_a_step_of_it(at):
    heartbeat.enter("step")
    with heartbeat.within("evaluation"):
        assert heartbeat.at[0] == "evaluation"
        at(200.0)
    assert heartbeat.at == ("step", 0, 200.0)
    assert heartbeat.limit_s("evaluation") == 3 * 200.0
    at(201.0)
    heartbeat.step_done(1)
    at(900.0)
    heartbeat.enter("finish")
    assert heartbeat.limit_s("step") == 60.0


def test_each_batch_of_a_validation_is_progress(at):
    """Four batches of 300 s each: the limit is three times 300 s, not three times 1200 s."""
    began = []

    class SlowModel(torch.nn.Linear):
        def forward(self, inputs):
            began.append(heartbeat.at[2])
            at(300.0 * len(began))
            return super().forward(inputs)

    samples = [(torch.ones(2), torch.tensor(0)) for _ in range(8)]
    with heartbeat.within("evaluation"):
        stepper(SlowModel(2, 3), BatchPlan(2, 1, 1)).validate(samples, step=0)
        assert began == [0.0, 300.0, 600.0, 900.0]
        assert heartbeat.at == ("evaluation", 0, 1200.0)
    assert heartbeat.limit_s("evaluation") == 900.0


def test_each_written_part_of_a_checkpoint_is_progress(at, tmp_path, monkeypatch):
    def since():
        heartbeat.beat(tmp_path, 0, threading.get_ident())
        return read_heartbeats(tmp_path)[0].since

    times, write_item = [], DefaultSavePlanner.resolve_data

    def slow(planner, item):
        times.append(since())
        at(300.0 * len(times))
        return write_item(planner, item)

    monkeypatch.setattr(DefaultSavePlanner, "resolve_data", slow)
    with heartbeat.within("checkpoint"):
        storage.write({name: torch.ones(2) for name in "abc"}, tmp_path / "checkpoint", 0)
        assert [*times, since()] == [0.0, 300.0, 600.0, 900.0]
        at(1000.0)
    at(1050.0)
    heartbeat.checkpoint_part_written()
    assert since() == 1000.0, "a checkpoint in the background is no progress of training"


def test_it_is_rewritten_while_the_main_thread_works(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr("disttrain.runtime.rank_heartbeat.INTERVAL_S", 0.01)
    heartbeat.start(3, TIMEOUTS)

    def newest():
        after_s = time.monotonic() + 0.05
        while not (found := read_heartbeats(tmp_path)) or found[0].written <= after_s:
            time.sleep(0.01)
        return found[0]

    first = newest()
    assert (first.rank, first.pid, first.phase, first.step, first.waiting) == (
        3,
        os.getpid(),
        "setup",
        0,
        False,
    )
    assert first.where.startswith("test_heartbeat.py:")
    heartbeat.enter("step")
    heartbeat.step_done(5)
    with heartbeat.collective():
        with suppress(RuntimeError), heartbeat.collective():
            raise RuntimeError
        assert newest().waiting
    assert not newest().waiting
    heartbeat.communicates_while(lambda: True)
    later = newest()
    assert (later.phase, later.step, later.waiting, later.limit_s) == ("step", 5, True, 60.0)
    heartbeat.stop()
    assert read_heartbeats(tmp_path) == []


def test_a_rank_that_cannot_write_its_heartbeat_is_not_watched(at, tmp_path, monkeypatch):
    def beat():
        heartbeat.beat(tmp_path, 3, threading.get_ident())
        return [each.rank for each in read_heartbeats(tmp_path)]

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    assert beat() == [3]
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert [beat(), beat()] == [[], []], "one that stays would age, like that of a stopped rank"
    assert beat() == [3]


def test_a_script_is_watched_between_its_first_and_its_last_step(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    ScriptWatch(0, StepClock(), steps=9).step_done(3)
    assert not writing_threads(), "its run has no limit"
    monkeypatch.setenv(SCRIPT_TIMEOUT_VARIABLE, "7")
    watch = ScriptWatch(1, StepClock(), steps=9)
    for step in (3, 4):
        watch.step_done(step)
    while [(each.rank, each.step, each.limit_s) for each in read_heartbeats(tmp_path)] != [(1, 4, 7.0)]:
        time.sleep(0.01)
    watch.step_done(9)
    assert (read_heartbeats(tmp_path), writing_threads()) == ([], [])
    watch.close()
