"""The step clock is a partition: phases sum to the step, whatever is switched when."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.parallel.ddp import after_own_backward, at_end_of_backward
from disttrain.telemetry.step_clock import (
    COMM,
    COMPUTE,
    CONTROL_SYNC,
    INPUT,
    OPTIMIZER,
    OTHER,
    CudaClock,
    StepClock,
    control_sync,
)


@given(st.lists(st.tuples(st.integers(0, 6), st.floats(0, 10)), max_size=30))
def test_phases_sum_to_the_step_and_every_second_has_its_phase(switches):
    now, expected = [100.0], [0.0] * 7
    clock = StepClock(lambda: now[0])
    clock.start()
    for phase, seconds in switches:
        clock.switch(phase)
        now[0] += seconds
        expected[phase] += seconds
    clock.end_step()
    [step] = clock.finished()
    assert step.start_s == 0
    assert step.phases == pytest.approx(expected, abs=1e-9)


def test_a_control_synchronisation_returns_to_its_phase_also_after_an_error():
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    clock = StepClock(lambda: next(times))
    clock.start()
    clock.switch(COMPUTE)
    with pytest.raises(OSError, match="lost"), control_sync(clock):
        raise OSError("lost")
    assert clock.phase == COMPUTE
    clock.end_step()
    [step] = clock.finished()
    assert (step.phases[OTHER], step.phases[COMPUTE], step.calls) == (1.0, 2.0 + 4.0, {CONTROL_SYNC: [3.0]})
    assert step.exposed_s == 3.0


def test_the_own_backward_pass_ends_once_after_its_gradients_and_before_the_wait_of_ddp():
    """In each pass, and whichever outputs of the model it comes through."""
    order, weight = [], torch.nn.Parameter(torch.ones(3))
    weight.register_post_accumulate_grad_hook(lambda _: order.append("gradient"))
    # as DDP does, when a gradient is ready
    weight.register_hook(lambda _: at_end_of_backward(lambda: order.append("wait")))
    hidden = weight * 2
    unused, used = hidden + 1, hidden.sum()
    after_own_backward([unused, hidden, used], lambda: order.append("end"))
    used.backward(retain_graph=True)
    (unused.sum() + used).backward()
    assert order == ["gradient", "end", "wait"] * 2


class FakeEvent:
    """A CUDA event on a device that runs behind the host."""

    host = passed = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = FakeEvent.host

    def query(self):
        return self.at <= FakeEvent.passed

    def synchronize(self):
        FakeEvent.passed = max(FakeEvent.passed, self.at)

    def elapsed_time(self, end):
        """Milliseconds, in the single precision of a real event."""
        assert end.query(), "read before the device has passed it"
        return float(np.float32((end.at - self.at) * 1e3))


@pytest.fixture
def device_clock(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    FakeEvent.host = FakeEvent.passed = 0.0
    return CudaClock()


def test_the_device_clock_is_read_when_the_device_has_passed(device_clock):
    device_clock.start()
    for seconds in (1.0, 2.0):
        for phase in (INPUT, COMPUTE, COMM, OPTIMIZER):
            device_clock.switch(phase)
            FakeEvent.host += seconds
        device_clock.end_step()
    FakeEvent.host += 50  # a validation
    device_clock.start()
    device_clock.switch(COMPUTE)
    FakeEvent.host += 3.0
    device_clock.end_step()
    FakeEvent.passed = 5.0  # the device is in its second step
    [first] = device_clock.finished()
    second, third = device_clock.finished(await_steps=9)
    assert device_clock.finished() == []
    assert [second.phases[phase] for phase in (INPUT, COMPUTE, COMM, OPTIMIZER)] == [2.0] * 4
    assert [step.start_s for step in (first, second, third)] == [0.0, 4.0, 62.0]
    assert [step.gap_s for step in (first, second, third)] == [0.0, 0.0, 50.0]
    assert [sum(step.phases) for step in (first, second, third)] == [4.0, 8.0, 3.0]


def test_starts_on_a_device_stay_precise_for_days(device_clock):
    FakeEvent.passed = math.inf
    device_clock.start()
    errors_s = []
    for step_s in np.random.default_rng(0).normal(10.0, 0.1, 20_000):
        began_s = FakeEvent.host
        FakeEvent.host += step_s
        device_clock.end_step()
        [step] = device_clock.finished()
        errors_s.append(abs(step.start_s - began_s))
    assert max(errors_s) < 1e-3
