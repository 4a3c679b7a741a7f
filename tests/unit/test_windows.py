"""Long runs: steps that share a record keep their sums, extremes and distribution, in a bounded file."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analysis.series import read_steps
from disttrain.bins import RESOLUTION, bin_of, durations
from disttrain.records import CLASSES, Step, StepWindow
from disttrain.rundir import RunDir, read_jsonl
from disttrain.telemetry.phases import COMPUTE, OPTIMIZER, HostClock
from disttrain.telemetry.recorder import WINDOW, StepRecorder


def take(path, seconds, *, full, sampled=(), close_at=None):
    """Record steps of these durations, a tenth of each for the optimizer."""
    now = [0.0]
    clock = HostClock(lambda: now[0])
    recorder = StepRecorder(path, clock, samples_per_step=4, warmup_steps=0, split=None, full_records=full)
    recorder.looked_at = frozenset(sampled)
    clock.start()
    for step, step_s in enumerate(seconds, 1):
        clock.switch(COMPUTE)
        now[0] += 0.9 * step_s
        clock.switch(OPTIMIZER)
        now[0] += 0.1 * step_s
        recorder.note(step, torch.tensor(float(step)), 0.5)
        clock.end_step()
        if step == close_at:
            recorder.collect()
            recorder.flush(close_window=True)
    recorder.collect()
    recorder.close()
    return list(read_jsonl(path))


@given(st.lists(st.floats(1e-4, 100), min_size=1, max_size=400), st.integers(0, 150))
def test_windows_lose_no_sum_no_extreme_and_keep_the_distribution(tmp_path_factory, seconds, full):
    lines = take(tmp_path_factory.mktemp("steps") / "steps.jsonl", seconds, full=full)
    alone = [Step.model_validate(line) for line in lines if "step" in line]
    windows = [StepWindow.model_validate(line) for line in lines if "first" in line]
    assert len(alone) == min(full, len(seconds))
    assert sum(window.steps for window in windows) == len(seconds) - len(alone)
    step = len(alone)
    for window in windows:
        own = np.array(seconds[step : step + window.steps])
        assert (window.first, window.last) == (step + 1, step + window.steps)
        assert window.step_s == pytest.approx(own.sum(), abs=1e-5)
        assert window.optimizer_s == pytest.approx(0.1 * own.sum(), abs=1e-5)
        assert sum(getattr(window, name) or 0 for name in CLASSES) == pytest.approx(window.step_s, abs=1e-5)
        assert window.shortest_s == pytest.approx(own.min(), abs=1e-6)
        assert window.longest_s == pytest.approx(own.max(), abs=1e-6)
        assert seconds[window.longest_step - 1] == pytest.approx(own.max(), abs=1e-6)
        assert np.sort(durations(window.bins)) == pytest.approx(np.sort(own), rel=RESOLUTION - 1)
        assert window.loss == pytest.approx(np.mean(range(window.first, window.last + 1)))
        assert window.samples == 4 * window.steps
        step += window.steps
    assert all(window.steps == WINDOW for window in windows[:-1])


def test_sampled_steps_keep_lines_of_their_own(tmp_path):
    lines = take(tmp_path / "steps.jsonl", [0.1] * 20, full=5, sampled={12})
    assert [line["step"] for line in lines if "step" in line] == [1, 2, 3, 4, 5, 12]
    [window] = [line for line in lines if "first" in line]
    assert (window["first"], window["last"], window["steps"]) == (6, 20, 14)


def test_a_window_ends_where_a_checkpoint_is_taken(tmp_path):
    lines = take(tmp_path / "steps.jsonl", [0.1] * 50, full=0, close_at=30)
    assert [(line["first"], line["last"]) for line in lines] == [(1, 30), (31, 50)]


def test_a_resumed_run_replaces_whole_windows(tmp_path):
    run = RunDir(tmp_path)
    take(run.attempt(0).steps(0), [0.1] * 50, full=0, close_at=30)
    path = run.attempt(1).steps(0)
    take(path, [0.1] * 20, full=0)
    line = json.loads(path.read_text()) | {"first": 31, "last": 50}
    path.write_text(json.dumps(line) + "\n")
    assert {step: attempt for step, (attempt, _) in read_steps(run, 0).items()} == {1: 0, 31: 1}


def test_a_million_steps_stay_below_a_hundred_megabytes(tmp_path):
    spread = np.random.default_rng(0).lognormal(-3, 0.5, 3000)  # far more bins in use than real steps need
    lines = (tmp_path / "steps.jsonl", list(spread))
    take(*lines, full=1000)
    sizes = [(len(line) + 1, "first" in json.loads(line)) for line in lines[0].read_text().splitlines()]
    full_bytes = max(size for size, window in sizes if not window)
    window_bytes = max(size for size, window in sizes if window)
    full = 100_000
    assert full * full_bytes + (1_000_000 - full) / WINDOW * window_bytes < 100e6


@given(st.floats(1e-8, 1e5))
def test_a_duration_lies_in_its_bin(seconds):
    place = bin_of(seconds)
    assert RESOLUTION**place <= seconds * (1 + 1e-9)
    assert seconds < RESOLUTION ** (place + 1) * (1 + 1e-9)
