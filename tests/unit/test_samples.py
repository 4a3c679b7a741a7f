"""Samples of GPUs and processes, joined to the steps that they fell in, and the load of other processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.read.load import load_runs
from analysis.read.samples import Samples, other_load, step_at, utilization_by_step
from tests.support.fake_runs import edit, fake_run, write_lines
from tests.support.studies import run_of

SPAN = st.floats(0.01, 100)


@given(st.lists(st.tuples(SPAN, st.none() | SPAN, st.floats(0, 0.99)), min_size=1, max_size=50))
def test_a_sample_belongs_to_the_step_it_fell_in_and_one_in_a_pause_to_none(steps) -> None:
    """After some steps there is a pause, as for a validation."""
    now, records, inside, between = 0.0, [], [], []
    for number, (step_s, pause_s, share) in enumerate(steps, 7):
        records.append((now, step_s, number, 1))
        inside.append(now + share * step_s)
        now += step_s
        if pause_s:
            between.append(now + 0.5 * pause_s)
            now += pause_s
    backwards = np.array(records[::-1]).T
    assert list(step_at(inside, *backwards)) == list(range(7, 7 + len(steps)))
    assert np.isnan(step_at([-1.0, *between, now], *backwards)).all()


def test_a_sample_in_a_record_of_many_steps_is_placed_among_them() -> None:
    unplaced, window, profiled = (np.nan, 5.0, 96, 5), (20.0, 8.0, 101, 4), (28.0, 9.0, 105, 1)
    found = step_at([1.0, 20.0, 23.5, 27.99, 28.0, 36.9, 37.0], *np.array([unplaced, window, profiled]).T)
    assert np.array_equal(found, [np.nan, 101, 102, 104, 105, 105, np.nan], equal_nan=True)
    assert np.isnan(step_at([1.0], *np.array([unplaced]).T)).all()


def process_samples(
    cpu_percent: Sequence[float], *, steps: Sequence[float] | None = None, **columns: Sequence[Any]
) -> Samples:
    """Of rank 0 in steps 1, 2, ..."""
    size = len(cpu_percent)
    given = {
        "attempt": [0] * size,
        "rank": [0] * size,
        "host": ["n"] * size,
        "total": [np.nan] * size,
        **columns,
    }
    values = {"cpu_percent": np.array(cpu_percent), "host_cpu_percent": np.array(given["total"], dtype=float)}
    step = np.arange(1.0, size + 1) if steps is None else np.array(steps)
    return Samples(*(np.array(given[name]) for name in ("attempt", "rank", "host")), step, values)


def utilization(process: Samples) -> Any:
    gpu = Samples(*[np.empty(0)] * 4, {"utilization": np.empty(0)})
    return utilization_by_step({"gpu": gpu, "process": process}, "processors")


def test_utilization_is_that_of_rank_0_in_at_most_sixty_segments_of_equal_length() -> None:
    """121 steps make segments of three, of which the last has one."""
    numbers = np.arange(1.0, 122)
    middles = [*range(2, 120, 3), 121]
    steps, busy = zip(*utilization(process_samples(100 * numbers)), strict=True)
    assert [*steps] == middles == pytest.approx(busy)
    few, lost = [100.0] * 4, [100.0, np.nan, 300.0, 100.0, 100.0]
    assert utilization(process_samples(few)) == utilization(process_samples(lost)) == []
    others = process_samples([100.0, 300.0] * 5, rank=[0, 1] * 5, steps=[1.0, np.nan] * 5)
    assert utilization(others) == [(1, 1)]


@pytest.mark.parametrize(
    ("columns", "load"),
    [
        ({"total": [150, 150, 250, 250]}, 1.1),
        ({"total": [50] * 4}, 0.0),
        ({"total": [np.nan] * 4}, None),
        ({"total": [150] * 4, "steps": [np.nan] * 4}, None),
        ({"total": [900, 900, 150, 150], "attempt": [0, 0, 1, 1]}, 0.6),  # of the last attempt
        ({"total": [900, 150, 150, 150], "steps": [np.nan, 2, 3, 4]}, 0.6),
        ({"total": [150, 150, 300, 300], "host": ["a", "a", "b", "b"]}, 2.1),  # the most loaded node
        ({"total": [300] * 4, "rank": [0, 0, 1, 1]}, 1.2),  # all ranks are subtracted
    ],
)
def test_the_load_of_others_is_that_of_the_most_loaded_node_without_all_ranks(columns, load) -> None:
    samples = process_samples([90.0] * 4, **columns)
    assert other_load(samples) == (load if load is None else pytest.approx(load))


@pytest.mark.parametrize(
    ("metrics", "workers", "share"),
    [
        ({"device": "cpu", "cpu_count": 4}, 0, 0.15),
        ({"device": "cpu", "cpu_count": 4}, 2, None),
        ({"device": "cpu", "cpu_count": None}, 0, None),
        ({"device": "NVIDIA H100", "cpu_count": 4}, 0, None),
    ],
)
def test_the_busy_share_is_known_of_runs_on_cpus_without_loader_processes(metrics, workers, share) -> None:
    samples: Any = {"process": process_samples([90.0] * 4, total=[150] * 4)}
    run = run_of(axes={"data.workers": workers}, metrics=metrics, samples=samples)
    assert run.busy_share == (share if share is None else pytest.approx(share))


def test_over_attempts_only_samples_in_steps_that_were_kept_count(tmp_path: Path) -> None:
    """Attempt 0 was killed after step 10, and attempt 1 went on from 5; each step took a second."""
    run = fake_run(tmp_path / "s" / "run")
    for number, (first, last, cpu_percent) in enumerate([(1, 10, 100.0), (6, 12, 300.0)]):
        attempt, steps = run.attempt(number), range(first, last + 1)
        write_lines(
            attempt.steps(0), [{"step": step, "start_s": step - first, "step_s": 1.0} for step in steps]
        )
        sample = {"rank": 0, "cpu_percent": cpu_percent}
        write_lines(attempt.host_samples(0), [sample | {"at_s": step - first + 0.5} for step in steps])
    edit(run.metrics, attempt=1)
    (loaded,) = load_runs([tmp_path / "s"])
    expected = [(step, pytest.approx(1.0 if step <= 5 else 3.0)) for step in range(1, 13)]
    assert utilization_by_step(loaded.samples, "processors") == expected
    assert utilization_by_step(loaded.samples, "gpu") == []
