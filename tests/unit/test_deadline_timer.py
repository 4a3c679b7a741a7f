"""Waits until a deadline, to which errors of single waits do not add."""

import time

import pytest

from disttrain.models.emulated_device import DeadlineTimer, each_after
from disttrain.runtime.process import SPIN_S, wait_until


class FakeTime:
    """A clock that moves in each sleep, by `oversleep` more than its time, and a little when read."""

    def __init__(self, oversleep=0.0):
        self.now_s, self.oversleep, self.slept = 100.0, oversleep, []

    def now(self):
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds + self.oversleep


def test_a_wait_sleeps_and_spins_only_at_the_end():
    clock = FakeTime()
    wait_until(101.0, clock.now, clock.sleep)
    assert clock.slept == [pytest.approx(1.0 - SPIN_S, abs=1e-5)]
    assert 101.0 <= clock.now_s < 101.0 + 1e-5
    wait_until(100.0, clock.now, clock.sleep)
    assert len(clock.slept) == 1


def test_a_real_wait_never_ends_early():
    deadline = time.perf_counter() + 0.05
    wait_until(deadline)
    assert time.perf_counter() >= deadline


@pytest.mark.parametrize(
    ("restarts", "stopped_s", "layer_s", "late_s"),
    [
        (False, 0, 0.02, 0.004 + 0.003),  # a late layer does not delay the next one
        (False, 0.05, 0.02 + 0.05, 0.004 + 0.003),  # a collective does
        (True, 0, 0.004 + 0.003 + 0.02, 0.004 + 0.003),  # each layer begins anew
    ],
)
def test_errors_within_a_pass_do_not_add_up(restarts, stopped_s, layer_s, late_s):
    clock = FakeTime(oversleep=0.004)
    timer = DeadlineTimer(clock.now, clock.sleep)
    timer.restarts = restarts
    timer.start()
    began = clock.now_s
    for _ in range(10):
        timer.advance(0.02)
        clock.now_s += 0.003  # hooks, copies: on the host, while the device computes on
        with timer.paused():
            clock.now_s += stopped_s
    assert timer.end() == pytest.approx(late_s, abs=2e-4)
    assert clock.now_s - began == pytest.approx(10 * layer_s + (0 if restarts else late_s), abs=2e-3)


def test_input_comes_later_by_the_given_seconds_on_top_of_loading():
    clock = FakeTime()

    def load():
        for item in "ab":
            clock.now_s += 0.5
            yield item

    batches = each_after(0.25, load(), DeadlineTimer(clock.now, clock.sleep))
    for item in "ab":
        began = clock.now_s
        assert next(batches) == item
        assert clock.now_s - began == pytest.approx(0.75, abs=1e-4)
    assert next(batches, None) is None
