"""Figures of `metrics.json`, and series of the figures of steps."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.records.metrics import LossPoint
from disttrain.records.steps import PHASES
from disttrain.telemetry.step_clock import COMM, COMM_TRANSFER, COMPUTE, OTHER, StepClock
from disttrain.telemetry.steps import StepResult, StepSeries
from disttrain.telemetry.summary import RankSummary, memory, phases, step_time

RATIOS = ("communication_overhead_percent", "communication_computation_ratio")


def sums(seconds):
    return [seconds.get(phase, 0.0) for phase in range(7)]


def test_phases_are_means_over_ranks_and_steps_and_communication_a_share_of_the_whole_step():
    first = sums({COMPUTE: 5.0, COMM: 1.0, COMM_TRANSFER: 1.0, OTHER: 3.0})
    second = sums({COMPUTE: 4.0, COMM_TRANSFER: 1.0})
    found = phases([first, second], 2, comm_known=True)
    assert [found[name] for name in RATIOS] == pytest.approx([(20 + 20) / 2, (2 / 5 + 1 / 4) / 2])
    assert (found["measured_s"], found["composition"]["compute_s"]) == (7.5, 2.25)
    assert (found["composition"]["comm_wait_s"], found["composition"]["comm_transfer_s"]) == (0.25, 0.5)
    unknown = phases([first], 1, comm_known=False)
    assert unknown["composition"]["comm_wait_s"] is unknown["composition"]["comm_transfer_s"] is None
    without_compute = phases([first, sums({OTHER: 1.0})], 1, comm_known=True)
    assert {found[name] for found in (unknown, without_compute) for name in RATIOS} == {None}
    nothing = phases([sums({})], 0, comm_known=True)
    assert nothing.pop("composition") == dict.fromkeys(PHASES)
    assert set(nothing.values()) == {None}


@given(st.lists(st.floats(1e-6, 100), max_size=200))
def test_step_time_figures(durations):
    found = step_time(durations)
    if not durations:
        assert found is None
        return
    assert (found.mean_s, found.max_s) == (pytest.approx(np.mean(durations)), max(durations))
    assert found.p95_s == pytest.approx(np.percentile(durations, 95))
    deviation = np.std(durations, ddof=1) if len(durations) > 1 else 0.0
    assert found.std_s == pytest.approx(deviation, abs=1e-9)
    assert sum(found.histogram.counts) == len(durations)
    assert len(found.histogram.edges_s) == len(found.histogram.counts) + 1
    assert found.min_s <= found.p50_s <= found.p99_s <= found.max_s


def test_memory_is_the_largest_of_a_rank_and_of_a_gpu_over_its_ranks():
    shared, whole, cpu = (
        RankSummary([], device, peak, reserved, total, None)
        for device, peak, reserved, total in (("a", 10, 30, 100), ("b", 20, 50, 100), ("c", 15, None, None))
    )
    found = memory([shared, shared, whole, cpu])
    assert found == {
        "peak_memory_bytes": 20,
        "peak_reserved_memory_bytes": 50,
        "gpu_memory_utilization": pytest.approx(0.6),
    }
    assert memory([shared, shared, shared])["gpu_memory_utilization"] == pytest.approx(0.9)
    assert set(memory([cpu]).values()) == {15, None}


@given(st.integers(2, 60), st.integers(0, 300))
def test_thinning_keeps_order_and_both_ends(limit, size):
    series = StepSeries()
    for step in range(size):
        series.add(step, step)
    steps = [point["step"] for point in series.points(dict, "value", limit)]
    assert len(steps) == min(size, limit)
    assert steps == sorted(set(steps))
    assert steps[:1] + steps[-1:] == [0, size - 1] * bool(size)


def test_a_series_goes_on_from_its_tensor_and_has_null_for_values_that_are_not_finite():
    before, after = StepSeries(), StepSeries()
    assert before.newest is None
    before.add(1, math.nan)
    before.add(2, 2 / 3)
    after.extend(before.tensor())
    after.add(3, math.inf)
    points = [LossPoint(step=step, loss=loss) for step, loss in ((1, None), (2, 2 / 3), (3, None))]
    assert after.points(LossPoint, "loss") == points
    assert after.newest == (3, math.inf)


def test_a_result_has_its_seconds_once_its_step_is_closed():
    times = iter([0.0, 1.0, 3.0, 6.0])
    clock = StepClock(lambda: next(times))
    clock.start()
    clock.switch(COMPUTE)
    clock.switch(COMM)
    result = StepResult(1, torch.tensor(1.0), 0.1, marks=clock.step)
    assert result.step_s is None
    clock.end_step()
    assert (result.step_s, result.compute_s, result.comm_s) == (6.0, 2.0, 3.0)
    assert replace(result, comm_reason="an unshard was asynchronous").comm_s is None
