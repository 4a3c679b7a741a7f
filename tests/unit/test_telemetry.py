"""Step records, summary figures, the loss curve and the sinks."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.errors import ConfigError
from disttrain.records import CLASSES, Step
from disttrain.rundir import RunDir, read_jsonl
from disttrain.telemetry import sinks
from disttrain.telemetry.losses import GlobalLoss
from disttrain.telemetry.phases import COMPUTE, HostClock
from disttrain.telemetry.recorder import StepRecorder
from disttrain.telemetry.summary import composition, step_time, thin
from disttrain.world import World

ALONE = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)


def record(path, losses, *, warmup=0, measures_comm=True):
    times = iter(range(1000))
    clock = HostClock(lambda: float(next(times)))
    recorder = StepRecorder(path, clock, samples_per_step=4, warmup_steps=warmup, measures_comm=measures_comm)
    clock.start()
    for step, loss in enumerate(losses, 1):
        clock.switch(COMPUTE)
        recorder.note(step, torch.tensor(loss), lr=0.1)
        clock.end_step()
    recorder.collect()
    recorder.close()
    return recorder


def test_step_lines_are_valid_records_and_their_parts_sum_to_the_step(tmp_path):
    record(tmp_path / "steps.jsonl", [3.0, 2.0])
    lines = [Step.model_validate(line) for line in read_jsonl(tmp_path / "steps.jsonl")]
    assert [line.step for line in lines] == [1, 2]
    assert [line.loss for line in lines] == [3.0, 2.0]
    for line in lines:
        assert sum(getattr(line, name) for name in CLASSES) == pytest.approx(line.step_s, abs=1e-6)


def test_a_loss_that_is_not_finite_is_null_in_strict_json(tmp_path):
    record(tmp_path / "steps.jsonl", [math.nan, math.inf])
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["loss"] for line in lines] == [None, None]


def test_warm_up_steps_are_written_but_not_measured(tmp_path):
    recorder = record(tmp_path / "steps.jsonl", [1.0] * 5, warmup=3)
    assert len(list(read_jsonl(tmp_path / "steps.jsonl"))) == 5
    assert len(recorder.durations) == 2
    assert sum(recorder.measured) == pytest.approx(sum(recorder.durations))


def test_what_is_not_measured_is_null_never_zero(tmp_path):
    record(tmp_path / "steps.jsonl", [1.0], measures_comm=False)
    [line] = read_jsonl(tmp_path / "steps.jsonl")
    assert line["comm_exposed_s"] is None
    assert composition([[1.0] * 6], 2, measures_comm=False)["comm_exposed_s"] is None
    assert composition([[0.0] * 6], 0, measures_comm=True) == dict.fromkeys(CLASSES)


def test_composition_is_the_mean_over_ranks_and_steps():
    parts = composition([[2.0, 0, 0, 0, 0, 0], [4.0, 0, 2.0, 0, 0, 0]], 2, measures_comm=True)
    assert parts["compute_s"] == 1.5
    assert parts["comm_exposed_s"] == 0.5


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
    points = list(range(size))
    kept = thin(points, limit)
    assert len(kept) == min(size, limit)
    assert kept == sorted(set(kept))
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_global_loss_of_one_rank_is_its_own():
    losses = GlobalLoss(ALONE)
    losses.add(1, torch.tensor(2.0))
    losses.add(2, torch.tensor(1.0))
    assert losses.ready() == []
    losses.reduce()
    assert losses.ready() == [(1, 2.0), (2, 1.0)]
    losses.reduce()
    assert losses.ready() == []


def test_tensorboard_files_open_in_their_own_reader(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunDir(tmp_path)
    sink = sinks.open_sink("tensorboard", run)
    sink.scalars(7, {"loss/train": 2.5})
    sink.close()
    events = EventAccumulator(str(run.tensorboard)).Reload()
    [event] = events.Scalars("loss/train")
    assert (event.step, event.value) == (7, 2.5)


def test_unknown_sink_is_refused_with_the_nearest_one(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        sinks.open_sink("tensorbord", RunDir(tmp_path))
