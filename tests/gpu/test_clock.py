"""The step clock on a real GPU: known work is found in its class, and the parts are the step."""

from __future__ import annotations

import itertools
import statistics

import pytest
import torch

from disttrain.models.emulated_device import make_device
from disttrain.telemetry.step_clock import COMM, COMPUTE, CONTROL_SYNC, INPUT, OPTIMIZER, OTHER, CudaClock

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

KNOWN_S = {INPUT: 0.02, COMPUTE: 0.06, COMM: 0.04, OPTIMIZER: 0.03}
STEPS = 5


def test_known_work_is_found_in_its_class_and_the_parts_are_the_step():
    device = make_device(torch.device("cuda", 0))
    clock = CudaClock()
    torch.cuda.synchronize()
    clock.start()
    for _ in range(STEPS):
        for phase, seconds in KNOWN_S.items():
            clock.switch(phase)
            device.advance(seconds)
        clock.switch(CONTROL_SYNC)
        device.advance(0.01)
        clock.end_step()
    steps = clock.finished(await_steps=STEPS)
    assert len(steps) == STEPS
    for step, following in itertools.pairwise(steps):
        assert step.start_s + sum(step.phases) + sum(step.calls[CONTROL_SYNC]) == pytest.approx(
            following.start_s, abs=1e-5
        )
    assert statistics.median(step.calls[CONTROL_SYNC][-1] for step in steps) == pytest.approx(
        0.01, rel=0.05, abs=0.001
    )
    for phase, seconds in {**KNOWN_S, OTHER: 0.0}.items():
        found = statistics.median(step.phases[phase] for step in steps)
        assert found == pytest.approx(seconds, rel=0.05, abs=0.001)


def test_what_the_device_has_yet_to_do_is_left_for_later():
    device = make_device(torch.device("cuda", 0))
    clock = CudaClock()
    torch.cuda.synchronize()
    clock.start()
    clock.end_step()
    device.advance(1.0)
    clock.end_step()
    assert len(clock.finished(await_steps=1)) == 1
    assert len(clock.finished(await_steps=1)) == 1
