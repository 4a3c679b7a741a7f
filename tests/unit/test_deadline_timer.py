"""Waiting to the moment: deadlines that errors do not add to."""

from __future__ import annotations

import time

import pytest

from disttrain.models.emulated_device import DeadlineTimer, each_after
from disttrain.runtime.process import SPIN_S, wait_until


class FakeTime:
    """A clock that moves when somebody sleeps, `oversleep` longer than asked, and a little when read."""

    def __init__(self, oversleep: float = 0.0) -> None:
        self.now_s = 100.0
        self.oversleep = oversleep
        self.slept: list[float] = []

    def now(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds + self.oversleep


def test_a_wait_sleeps_and_spins_only_at_the_end():
    clock = FakeTime()
    wait_until(101.0, clock.now, clock.sleep)
    assert clock.slept == [pytest.approx(1.0 - SPIN_S, abs=1e-5)]
    assert 101.0 <= clock.now_s < 101.0 + 1e-5


def test_a_real_wait_never_ends_early_and_leaves_the_processor():
    processor, deadline = time.thread_time(), time.perf_counter() + 0.2
    wait_until(deadline)
    assert time.perf_counter() >= deadline
    assert time.thread_time() - processor < 0.1


@pytest.mark.parametrize("stopped_s", [0, 0.05])
def test_what_is_late_does_not_add_up_within_a_pass_but_what_stops_it_does(stopped_s):
    clock = FakeTime(oversleep=0.004)
    timer = DeadlineTimer(clock.now, clock.sleep)
    timer.start()
    began = clock.now_s
    for _ in range(10):
        timer.advance(0.02)
        clock.now_s += 0.003  # hooks, copies: on the host, while the device computes on
        with timer.paused():
            clock.now_s += stopped_s
    assert timer.end() == pytest.approx(0.004 + 0.003, abs=2e-4)
    assert clock.now_s - began == pytest.approx(10 * (0.02 + stopped_s) + 0.004 + 0.003, abs=2e-4)


def test_work_that_begins_anew_lets_all_that_came_before_count():
    clock = FakeTime()
    timer = DeadlineTimer(clock.now, clock.sleep)
    timer.restarts = True
    began = clock.now_s
    for _ in range(10):
        clock.now_s += 0.003
        timer.advance(0.02)
    assert timer.end() == pytest.approx(0, abs=1e-5)
    assert clock.now_s - began == pytest.approx(10 * (0.003 + 0.02), abs=2e-4)


def test_input_comes_later_by_what_is_asked_on_top_of_loading():
    clock = FakeTime()

    def load():
        for item in "ab":
            clock.now_s += 0.5
            yield item

    batches = each_after(0.25, load(), DeadlineTimer(clock.now, clock.sleep))
    for item in "ab":
        began = clock.now_s
        assert next(batches) == item
        assert clock.now_s - began == pytest.approx(0.5 + 0.25, abs=1e-4)
    assert next(batches, None) is None
