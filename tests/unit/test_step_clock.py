"""The step clock is a partition: parts sum to the step, whatever is switched when."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.parallel.ddp import after_own_backward
from disttrain.telemetry.step_clock import (
    COMM,
    COMPUTE,
    INPUT,
    OPTIMIZER,
    OTHER,
    CudaClock,
    HostClock,
)


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.integers(0, 6), st.floats(0, 10)), max_size=30), st.floats(0, 10))
def test_parts_sum_to_the_step_and_every_second_has_its_class(switches, tail):
    time = FakeTime()
    clock = HostClock(time)
    expected = [0.0] * 7
    clock.start()
    current = OTHER
    for phase, seconds in switches:
        time.now += seconds
        expected[current] += seconds
        clock.switch(phase)
        current = phase
    time.now += tail
    expected[current] += tail
    clock.end_step()
    [step] = clock.finished()
    parts = step.phases
    assert step.start_s == 0
    assert parts == pytest.approx(expected, abs=1e-9)
    assert sum(parts) == pytest.approx(time.now - 100.0, abs=1e-9)


def test_steps_follow_each_other_without_a_gap():
    time = FakeTime()
    clock = HostClock(time)
    clock.start()
    for seconds in (1.0, 2.0, 4.0):
        clock.switch(COMPUTE)
        time.now += seconds
        clock.end_step()
    starts = [step.start_s for step in clock.finished()]
    assert starts == [0.0, 1.0, 3.0]
    assert clock.finished() == []


def test_time_between_end_and_start_belongs_to_no_step():
    time = FakeTime()
    clock = HostClock(time)
    clock.start()
    clock.switch(INPUT)
    time.now += 1
    clock.end_step()
    time.now += 50  # a validation
    clock.start()
    clock.switch(OPTIMIZER)
    time.now += 2
    clock.end_step()
    first, second = clock.finished()
    assert sum(first.phases) == 1
    assert sum(second.phases) == 2
    assert (second.start_s, second.gap_s) == (51, 50)


def test_own_backward_callback_runs_after_every_gradient_and_before_callbacks_queued_later():
    order = []
    weight = torch.nn.Parameter(torch.ones(3))
    weight.register_post_accumulate_grad_hook(lambda p: order.append("gradient"))

    def queue_late(grad):
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: order.append("reducer waits"))

    weight.register_hook(queue_late)  # as DDP does, when a gradient is ready
    loss = (weight * 2).sum()
    after_own_backward([loss], lambda: order.append(COMM))
    loss.backward()
    assert order == ["gradient", COMM, "reducer waits"]


def test_the_callback_runs_once_in_each_backward_pass_whichever_outputs_it_comes_through():
    calls = []
    weight = torch.nn.Parameter(torch.ones(3))
    hidden = weight * 2
    unused, used = hidden + 1, hidden.sum()
    after_own_backward([unused, hidden, used], lambda: calls.append(weight.grad is not None))
    used.backward(retain_graph=True)
    assert calls == [True]
    (unused.sum() + used).backward()
    assert calls == [True, True]


class FakeEvent:
    """A CUDA event on a device that runs `lag` behind the host."""

    host = 0.0
    passed = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = FakeEvent.host

    def query(self) -> bool:
        return self.at <= FakeEvent.passed

    def synchronize(self) -> None:
        FakeEvent.passed = max(FakeEvent.passed, self.at)

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert end.query(), "read before the device has passed it"
        return (end.at - self.at) * 1e3


def test_the_device_clock_is_a_partition_read_only_when_the_device_has_passed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    clock = CudaClock()
    clock.start()
    for seconds in (1.0, 2.0):
        for phase in (INPUT, COMPUTE, COMM, OPTIMIZER):
            clock.switch(phase)
            FakeEvent.host += seconds
        clock.end_step()
    FakeEvent.host += 50  # a validation
    clock.start()
    clock.switch(COMPUTE)
    FakeEvent.host += 3.0
    clock.end_step()
    FakeEvent.passed = 5.0  # the device is in its second step
    [first] = clock.finished()
    assert (first.start_s, sum(first.phases)) == (0.0, 4.0)
    second, third = clock.finished(await_steps=9)
    assert (second.gap_s, third.gap_s) == (0.0, 50.0)
    assert [second.phases[phase] for phase in (INPUT, COMPUTE, COMM, OPTIMIZER)] == [2.0] * 4
    assert (second.start_s, third.start_s) == (4.0, 62.0)
    assert third.phases[COMPUTE] == sum(third.phases) == 3.0


def test_starts_on_a_device_stay_precise_for_days(monkeypatch):
    """A real event gives milliseconds in single precision."""

    class RealEvent(FakeEvent):
        def elapsed_time(self, end):
            return float(np.float32(super().elapsed_time(end)))

    monkeypatch.setattr(torch.cuda, "Event", RealEvent)
    monkeypatch.setattr(FakeEvent, "host", 0.0)
    monkeypatch.setattr(FakeEvent, "passed", math.inf)
    clock = CudaClock()
    clock.start()
    errors_s = []
    for step_s in np.random.default_rng(0).normal(10.0, 0.1, 20_000):
        began_s = FakeEvent.host
        FakeEvent.host += step_s
        clock.end_step()
        [step] = clock.finished()
        errors_s.append(abs(step.start_s - began_s))
    assert max(errors_s) < 1e-3
