"""MSER-5 and the test of stationarity, on generated series with a known answer, and statistics of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.results.curves import scaling_curves
from analysis.stats.stationarity import BATCH, mser5, stationarity
from analysis.step_statistics import step_statistics
from analysis.study import make_study
from tests.support.step_series import autocorrelated
from tests.support.studies import run_of, sweep_of

SIMULATIONS = 100
Floats = np.ndarray
NOISE = 1 + 0.001 * np.random.default_rng(1).standard_normal(10_000)


def shares(count: int, lag_1: float, profile: Callable[[Floats], Floats] = np.ones_like) -> Counter[str]:
    """Percent of verdicts on generated runs; `profile` is the factor at positions from 0 to 1."""
    rng, at = np.random.default_rng(7), np.linspace(0, 1, count)
    return Counter(
        stationarity(autocorrelated(rng, count, lag_1) * profile(at)).verdict for _ in range(SIMULATIONS)
    )


@given(st.lists(st.floats(0.5, 2), min_size=10, max_size=80))
def test_mser5_is_the_minimum_of_its_definition(values: list[float]) -> None:
    batches = np.array(values[: len(values) // BATCH * BATCH]).reshape(-1, BATCH).mean(axis=1)
    statistic = [
        ((batches[d:] - batches[d:].mean()) ** 2).sum() / (batches.size - d) ** 2
        for d in range(batches.size // 2 + 1)
    ]
    found = mser5(values)
    assert found % BATCH == 0
    assert statistic[found // BATCH] == pytest.approx(min(statistic), abs=1e-12)


def test_mser5_drops_a_transient_and_nothing_of_a_constant_series() -> None:
    values = np.array([3.0] * 10 + [1.0, 1.1] * 45)
    assert mser5(values) == mser5(1e-6 * values) == mser5(1e8 + values) == 10
    assert mser5([1.0] * 100) == mser5([1.0] * 9) == 0


@pytest.mark.parametrize(("count", "lag_1"), [(60, 0.0), (200, 0.8), (1000, 0.8), (60, 0.9)])
def test_a_stationary_series_is_seldom_refused(count: int, lag_1: float) -> None:
    found = shares(count, lag_1)
    assert found["not stationary"] + found["warm-up too short"] <= 5
    if (count, lag_1) == (60, 0.9):
        assert found["too few steps"] >= 70, "few are independent"


@pytest.mark.parametrize(
    ("verdict", "profile"),
    [
        ("not stationary", lambda at: np.where(at > 0.9, 1.3, 1)),
        ("not stationary", lambda at: np.where(at < 0.6, 1, 1.2)),
        ("not stationary", lambda at: np.where((at > 0.4) & (at < 0.6), 1.2, 1)),
        ("not stationary", lambda at: 1 + 0.1 * at),
        ("not stationary", lambda at: np.where(at < 0.1, 3, 1 + 0.3 * (at > 0.7))),  # two changes
        ("warm-up too short", lambda at: np.where(at < 0.3, 1.5, 1)),
        ("warm-up too short", lambda at: np.where(at < 0.05, 3, 1)),
        ("warm-up too short", lambda at: 1 + 0.5 * np.exp(-10 * at)),
    ],
)
def test_a_change_is_found(verdict: str, profile: Callable[[Floats], Floats]) -> None:
    assert shares(200, 0.5, profile)[verdict] >= 90


@pytest.mark.parametrize("lag_1", [0.0, 0.5])
def test_the_smallest_changes_that_would_be_seen_are_found_in_four_of_five_runs(lag_1: float) -> None:
    rng = np.random.default_rng(3)
    found = [stationarity(autocorrelated(rng, 200, lag_1)).unseen for _ in range(SIMULATIONS)]
    drift, jump = np.median([each for each in found if each], axis=0)
    for profile in (lambda at: 1 + drift * at, lambda at: np.where(at > 0.5, 1 + jump, 1)):
        assert 70 <= SIMULATIONS - shares(200, lag_1, profile)["stationary"] <= 90


LONG_STEP = np.tile([1.0, 1.01, 0.99, 1.0, 1.02], 40)
LONG_STEP[3] = 20.0


@pytest.mark.parametrize(
    ("series", "verdict"),
    [
        (NOISE * np.linspace(1, 1.01, 10_000), "stationary"),  # below the margin
        (NOISE * np.linspace(1, 1.05, 10_000), "not stationary"),
        (LONG_STEP, "stationary"),
        ([0.2] * 100, "stationary"),
        (np.linspace(1, 2, 39), "too few steps"),
        (np.repeat(np.random.default_rng(2).uniform(1, 1.1, 10), 100), "too few steps"),  # ten records
    ],
)
def test_small_changes_and_outliers_are_tolerated(series, verdict) -> None:
    found = stationarity(series)
    assert (found.verdict, found.publishable) == (verdict, verdict != "not stationary")


@pytest.mark.parametrize(
    ("factor", "first", "end", "warm_up"), [(1.5, 0, 50, 50), (0.75, 150, 200, 0), (1.5, 50, 100, 0)]
)
def test_a_change_has_its_place_and_its_size(factor: float, first: int, end: int, warm_up: int) -> None:
    at = np.arange(200)
    found = stationarity(NOISE[:200] * np.where((at >= first) & (at < end), factor, 1))
    assert found.change is not None
    assert found.change.value == pytest.approx(factor - 1, abs=0.01)
    assert (found.change.first, found.change.end) == (pytest.approx(first, abs=5), pytest.approx(end, abs=5))
    assert found.warm_up == pytest.approx(warm_up, abs=5)


def test_a_run_that_drifts_takes_the_intervals_of_its_size_and_of_all_that_refers_to_it() -> None:
    for nodes, moving in ((1, {1, 2, 4}), (4, {4})):
        runs = sweep_of((1, 2, 4))
        drifting = next(run for run in runs if run.metrics.nodes == nodes)
        drifting.steps.seconds["step_s"][:] *= 1 + drifting.steps.step / 100
        statistics = step_statistics(runs)
        assert statistics[drifting.path].stationarity.verdict == "not stationary"
        (before,), (after,) = scaling_curves(runs), scaling_curves(runs, None, statistics)
        bases = {point.size for point in after.points if point.efficiency.basis == "not stationary"}
        assert bases - {nodes} == moving - {nodes}
        rates = [point.samples_per_s for point in after.points]
        assert [each.value for each in rates] == [point.samples_per_s.value for point in before.points]
        assert [each.basis for each in rates] == [
            "not stationary" if point.size == nodes else "repeats" for point in after.points
        ]


def test_statistics_are_those_of_included_runs_with_step_records() -> None:
    runs = [run_of(), run_of(2), run_of(4, included=False)]
    lost = replace(runs[0], steps=runs[0].steps.chosen(np.zeros(0, dtype=int)), folder=run_of(8).folder)
    pipeline = run_of(2, name="pipeline", metrics={"strategy": "pipeline"})
    found = step_statistics([*runs, lost, pipeline])
    assert [*found] == [runs[0].path, runs[1].path, pipeline.path]
    assert [each.ranks is not None for each in found.values()] == [False, True, False]


def test_the_leading_curve_is_the_fastest_at_its_largest_size() -> None:
    study = make_study(sweep_of((1, 2), groups=[{"optim.lr": 0.1}, {"optim.lr": 0.2}]))
    slow_first = replace(study.curves[1], points=(study.curves[0].points[0], study.curves[1].points[1]))
    small = replace(study.curves[0], points=(study.curves[1].points[0], study.curves[0].points[1]))
    assert replace(study, curves=[slow_first, small]).leading_curve is small
