"""Step records, summary figures and the loss curve."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.records.json_files import read_jsonl
from disttrain.records.metrics import LossPoint
from disttrain.records.steps import PHASES, Step
from disttrain.telemetry.step_clock import COMM, COMM_TRANSFER, COMPUTE, HostClock
from disttrain.telemetry.steps import StepResult, StepSeries
from disttrain.telemetry.summary import phases, step_time
from tests.support.step_logs import step_log


def record(path, losses, *, warmup=0, measures_comm=True):
    times = iter(range(1000))
    clock = HostClock(lambda: float(next(times)))
    recorder = step_log(path, clock, compares=measures_comm, samples_per_step=4, warmup_steps=warmup)
    clock.start()
    for step, loss in enumerate(losses, 1):
        clock.switch(COMPUTE)
        recorder.record(StepResult(step, torch.tensor(loss), 0.1))
        clock.end_step()
    recorder.reduce(wait=True)
    recorder.close()
    return recorder


def test_step_lines_are_valid_records_and_their_parts_sum_to_the_step(tmp_path):
    record(tmp_path / "steps.jsonl", [3.0, 2.0])
    lines = [Step.model_validate(line) for line in read_jsonl(tmp_path / "steps.jsonl")]
    assert [line.step for line in lines] == [1, 2]
    assert [line.loss for line in lines] == [3.0, 2.0]
    for line in lines:
        assert sum(getattr(line, name) for name in PHASES) == pytest.approx(line.step_s, abs=1e-6)


def test_a_loss_that_is_not_finite_is_null_in_strict_json(tmp_path):
    record(tmp_path / "steps.jsonl", [math.nan, math.inf])
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["loss"] for line in lines] == [None, None]


def test_warm_up_steps_are_written_but_not_measured(tmp_path):
    recorder = record(tmp_path / "steps.jsonl", [1.0] * 5, warmup=3)
    assert len(list(read_jsonl(tmp_path / "steps.jsonl"))) == 5
    assert len(recorder.series["step_s"]) == 2
    assert sum(recorder.measured) == pytest.approx(sum(recorder.series["step_s"].values))
    assert recorder.left_out == [(1, 3)]


def test_what_is_not_measured_is_null_never_zero(tmp_path):
    record(tmp_path / "steps.jsonl", [1.0], measures_comm=False)
    [line] = read_jsonl(tmp_path / "steps.jsonl")
    found = phases([[1.0] * 7], 2, comm_known=False)["composition"]
    for name in ("comm_wait_s", "comm_transfer_s"):
        assert line[name] is None
        assert found[name] is None
    assert line["comm_exposed_s"] is None
    nothing = phases([[0.0] * 7], 0, comm_known=True)
    assert nothing.pop("composition") == dict.fromkeys(PHASES)
    assert set(nothing.values()) == {None}


def test_exposed_communication_is_a_share_of_the_whole_step():
    first, second = [0.0] * len(PHASES), [0.0] * len(PHASES)
    first[COMPUTE], first[COMM], first[COMM_TRANSFER], first[PHASES.index("other_s")] = 5.0, 1.0, 1.0, 3.0
    second[COMPUTE], second[COMM_TRANSFER] = 4.0, 1.0
    names = ("communication_overhead_percent", "communication_computation_ratio")
    found = phases([first, second], 1, comm_known=True)
    assert [found[name] for name in names] == pytest.approx([(20 + 20) / 2, (2 / 5 + 1 / 4) / 2])
    for ranks, comm_known in (([first], False), ([first, [0.0] * 6 + [1.0]], True)):
        found = phases(ranks, 1, comm_known=comm_known)
        assert [found[name] for name in names] == [None, None]


def test_composition_is_the_mean_over_ranks_and_steps():
    found = phases([[2.0, 0, 0, 0, 0, 0, 0], [4.0, 0, 2.0, 0, 0, 0, 0]], 2, comm_known=True)
    assert found["measured_s"] == 4.0
    parts = found["composition"]
    assert parts["compute_s"] == 1.5
    assert parts["comm_wait_s"] == 0.5


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=200))
def test_step_time_figures(durations):
    found = step_time(durations)
    assert found.mean_s == pytest.approx(np.mean(durations))
    assert found.p95_s == pytest.approx(np.percentile(durations, 95))
    assert sum(found.histogram.counts) == len(durations)
    assert len(found.histogram.edges_s) == len(found.histogram.counts) + 1
    assert found.min_s <= found.p50_s <= found.p99_s <= found.max_s


def test_no_measured_steps_no_figures():
    assert step_time([]) is None


@given(st.integers(2, 60), st.integers(0, 300))
def test_thinning_keeps_order_and_both_ends(limit, size):
    series = StepSeries()
    for step in range(size):
        series.add(step, step)
    kept = [point["step"] for point in series.points(dict, "value", limit)]
    assert len(kept) == min(size, limit)
    assert kept == sorted(set(kept))
    if size:
        assert (kept[0], kept[-1]) == (0, size - 1)


def test_global_loss_of_one_rank_is_its_own(tmp_path):
    recorder = record(tmp_path / "steps.jsonl", [2.0, 1.0])
    points = [LossPoint(step=1, loss=2.0), LossPoint(step=2, loss=1.0)]
    assert recorder.series["loss"].points(LossPoint, "loss") == points


def test_a_further_value_is_in_the_line_and_in_a_series_of_its_name(tmp_path):
    clock = HostClock()
    recorder = step_log(tmp_path / "steps.jsonl", clock, full_records=1)
    clock.start()
    for step in range(1, 4):
        extra = {"grad_norm/head": torch.tensor(float(step))}
        recorder.record(StepResult(step, torch.tensor(1.0), 0.1, extra=extra))
        clock.end_step()
    recorder.reduce(wait=True)
    recorder.close()
    assert recorder.series["grad_norm/head"].newest == (3, 3.0)
    found = [line["extra"] for line in read_jsonl(tmp_path / "steps.jsonl")]
    assert found == [{"grad_norm/head": 1.0}, {"grad_norm/head": 2.5}]


def test_a_result_has_its_seconds_once_its_step_is_closed():
    times = iter([0.0, 1.0, 3.0, 6.0])
    clock = HostClock(lambda: next(times))
    clock.start()
    clock.switch(COMPUTE)
    clock.switch(COMM)
    result = StepResult(1, torch.tensor(1.0), 0.1, marks=clock.step)
    assert result.step_s is None
    clock.end_step()
    assert (result.step_s, result.compute_s, result.comm_s) == (6.0, 2.0, 3.0)
    assert replace(result, comm_reason="an unshard was asynchronous").comm_s is None


def test_a_curve_goes_on_from_its_tensors_and_has_null_for_what_is_not_finite():
    before, after = StepSeries(), StepSeries()
    before.add(1, math.nan)
    before.add(2, 2 / 3)
    after.extend(before.tensor())
    after.add(3, math.inf)
    assert after.points(LossPoint, "loss") == [
        LossPoint(step=step, loss=loss) for step, loss in ((1, None), (2, 2 / 3), (3, None))
    ]
    assert after.newest == (3, math.inf)
    assert StepSeries().newest is None
