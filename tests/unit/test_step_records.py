"""Long runs: steps that share a record keep their sums, extremes and distribution, in a bounded file."""

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.config.sections.telemetry import TelemetryConfig
from disttrain.records.json_files import read_jsonl
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES, RESOLUTION, Step, StepAggregate, bin_of, durations
from disttrain.telemetry.step_clock import COMM, COMPUTE, CONTROL_SYNC, OPTIMIZER, HostClock
from disttrain.telemetry.step_log import AGGREGATE_STEPS
from disttrain.telemetry.steps import StepResult
from tests.support.lineage import read_steps
from tests.support.step_logs import step_log


def record(path, seconds, *, full, sampled=(), after=0, warmup=0, window=None):
    """Record the steps after `after`, of these durations, a tenth of each for the optimizer: the recorder,
    and by step the window that a checkpoint would take along."""
    now = [0.0]
    clock = HostClock(lambda: now[0])
    options = {"samples_per_step": 4, "full_records": full, "profiled": frozenset(sampled)}
    recorder = step_log(path, clock, compares=False, warmup_steps=warmup, **options)
    if after:
        _, own = recorder.state()
        recorder.resume(after, own=own | {"aggregate": window})
    opened = {after: window}
    clock.start()
    for step, step_s in enumerate(seconds, after + 1):
        clock.switch(COMPUTE)
        now[0] += 0.9 * step_s
        clock.switch(OPTIMIZER)
        now[0] += 0.1 * step_s
        recorder.record(StepResult(step, torch.tensor(float(step)), 0.5))
        clock.end_step()
        recorder.collect()
        recorder.lines.flush()
        opened[step] = recorder.open_aggregate()
    return recorder, opened


def take(path, seconds, **how):
    """The lines of steps recorded to the end."""
    recorder, _ = record(path, seconds, **how)
    recorder.close()
    return list(read_jsonl(path))


@given(st.lists(st.floats(1e-4, 100), min_size=1, max_size=400), st.integers(0, 150))
def test_windows_lose_no_sum_no_extreme_and_keep_the_distribution(tmp_path_factory, seconds, full):
    lines = take(tmp_path_factory.mktemp("steps") / "steps.jsonl", seconds, full=full)
    alone = [Step.model_validate(line) for line in lines if "step" in line]
    windows = [StepAggregate.model_validate(line) for line in lines if "first" in line]
    assert len(alone) == min(full, len(seconds))
    assert sum(window.steps for window in windows) == len(seconds) - len(alone)
    step = len(alone)
    for window in windows:
        own = np.array(seconds[step : step + window.steps])
        assert (window.first, window.last) == (step + 1, step + window.steps)
        assert window.step_s == pytest.approx(own.sum(), abs=1e-5)
        assert window.optimizer_s == pytest.approx(0.1 * own.sum(), abs=1e-5)
        assert sum(getattr(window, name) or 0 for name in PHASES) == pytest.approx(window.step_s, abs=1e-5)
        assert window.shortest_s == pytest.approx(own.min(), abs=1e-6)
        assert window.longest_s == pytest.approx(own.max(), abs=1e-6)
        assert seconds[window.longest_step - 1] == pytest.approx(own.max(), abs=1e-6)
        assert np.sort(durations(window.bins)) == pytest.approx(np.sort(own), rel=RESOLUTION - 1)
        assert window.loss == pytest.approx(np.mean(range(window.first, window.last + 1)))
        assert window.samples == 4 * window.steps
        step += window.steps
    assert all(window.steps == AGGREGATE_STEPS for window in windows[:-1])


def test_sampled_steps_keep_lines_of_their_own(tmp_path):
    lines = take(tmp_path / "steps.jsonl", [0.1] * 20, full=5, sampled={12})
    assert [line["step"] for line in lines if "step" in line] == [1, 2, 3, 4, 5, 12]
    windows = [(line["first"], line["last"], line["steps"]) for line in lines if "first" in line]
    assert windows == [(6, 11, 6), (13, 20, 8)]


@given(st.data())
def test_over_attempts_no_step_is_lost_or_counted_twice(tmp_path_factory, data):
    """Each attempt is stopped, or killed some steps after its last checkpoint, which may be at any step."""
    run = RunDir(tmp_path_factory.mktemp("run"))
    full, warmup = data.draw(st.sampled_from([0, 40, 150])), data.draw(st.integers(0, 3))
    sampled = data.draw(st.frozensets(st.integers(1, 400), max_size=5))
    saved, window, warm = 0, None, set()
    kept = {}
    for attempt in range(data.draw(st.integers(1, 4))):
        warm = {step for step in warm if step <= saved} | set(range(saved + 1, saved + 1 + warmup))
        seconds = data.draw(st.lists(st.floats(0.01, 10), min_size=1, max_size=200))
        kept = {step: s for step, s in kept.items() if step <= saved} | dict(enumerate(seconds, saved + 1))
        path = run.attempt(attempt).steps(0)
        recorder, opened = record(
            path, seconds, full=full, sampled=sampled, after=saved, warmup=warmup, window=window
        )
        killed = data.draw(st.booleans())
        saved = data.draw(st.integers(saved, saved + len(seconds))) if killed else max(opened)
        window = opened[saved]
        if not killed:
            recorder.close()
    recorder.close()
    found = [line for _, line in read_steps(run, 0).values()]
    alone = [line["step"] for line in found if "step" in line]
    windows = [StepAggregate.model_validate(line) for line in found if "first" in line]
    inside = [set(range(each.first, each.last + 1)) for each in windows]
    assert [len(steps) for steps in inside] == [window.steps for window in windows]
    assert sorted([*alone, *itertools.chain(*inside)]) == sorted(kept)
    assert set(alone) == {step for step in kept if step <= full or step in sampled}
    assert all(steps <= warm or not steps & warm for steps in inside)
    for steps, each in zip(inside, windows, strict=True):
        assert each.step_s == pytest.approx(sum(kept[step] for step in steps), abs=1e-5)
    assert len(windows) <= len(kept) / AGGREGATE_STEPS + 3 * len(run.attempts()) + len(sampled)


def test_what_an_earlier_attempt_had_in_no_line_is_in_the_first_one_of_the_next(tmp_path):
    _, opened = record(tmp_path / "before.jsonl", [0.1] * 130, full=0)
    lines = take(tmp_path / "after.jsonl", [0.2] * 20, full=0, after=130, window=opened[130])
    assert [(line["first"], line["last"], line["start_s"]) for line in lines] == [
        (101, 130, None),
        (131, 150, 0.0),
    ]


def realistic(path, *, full, steps=2000):
    """The last steps of a million, as DDP on a GPU node has them, each followed by a checkpoint."""
    random = np.random.default_rng(0)
    now = [1e6 / 3]
    clock = HostClock(lambda: now[0])
    recorder = step_log(path, clock, samples_per_step=512, warmup_steps=10, full_records=full)
    clock.start()
    clock._anchor = 0.0
    for step in range(10**6 - steps, 10**6):
        for phase in (*range(CONTROL_SYNC), CONTROL_SYNC, CONTROL_SYNC, COMM):
            clock.switch(phase)
            now[0] += random.lognormal(-3, 0.5)  # far more bins in use than real steps need
        norm, skipped = torch.tensor(random.lognormal()), torch.tensor(False)
        recorder.record(
            StepResult(step, torch.tensor(random.uniform(1, 9)), 3e-4 * random.uniform(), norm, skipped)
        )
        clock.end_step()
        recorder.reduce(wait=True)
        recorder.open_aggregate()
    recorder.close()
    return [len(line) + 1 for line in path.read_text().splitlines()]


def test_a_million_steps_stay_below_a_hundred_megabytes_however_often_they_are_saved(tmp_path):
    full, attempts = TelemetryConfig().full_records, 50
    alone = realistic(tmp_path / "alone.jsonl", full=10**6)
    windows = realistic(tmp_path / "windows.jsonl", full=0)
    assert (len(alone), len(windows)) == (2000, 2000 / AGGREGATE_STEPS)
    line = json.loads((tmp_path / "alone.jsonl").read_text().splitlines()[0])
    assert line["comm_wait_s"] is not None
    assert line["start_s"] > 1e5
    lines = (10**6 - full) / AGGREGATE_STEPS + 3 * attempts
    assert full * max(alone) + lines * max(windows) < 100e6


@given(st.floats(1e-8, 1e5))
def test_a_duration_lies_in_its_bin(seconds):
    place = bin_of(seconds)
    assert RESOLUTION**place <= seconds * (1 + 1e-9)
    assert seconds < RESOLUTION ** (place + 1) * (1 + 1e-9)
