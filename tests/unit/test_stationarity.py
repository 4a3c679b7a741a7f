"""MSER-5 and the test of stationarity, on generated series with a known answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.stats.stationarity import BATCH, mser5, stationarity
from tests.support.step_series import autocorrelated

SIMULATIONS = 100
Floats = np.ndarray


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


@pytest.mark.parametrize(("count", "lag_1"), [(60, 0.0), (200, 0.5), (200, 0.8), (1000, 0.8), (60, 0.9)])
def test_a_stationary_series_is_seldom_refused(count: int, lag_1: float) -> None:
    found = shares(count, lag_1)
    assert found["not stationary"] + found["warm-up too short"] <= 5


def test_few_independent_steps_settle_nothing_and_are_published() -> None:
    assert shares(60, 0.9)["too few steps"] >= 70
    found = stationarity(np.linspace(1, 2, 39))
    assert (found.verdict, found.publishable) == ("too few steps", True)


@pytest.mark.parametrize(
    ("verdict", "profile"),
    [
        ("not stationary", lambda at: np.where(at > 0.9, 1.3, 1)),
        ("not stationary", lambda at: np.where(at < 0.6, 1, 1.2)),
        ("not stationary", lambda at: np.where((at > 0.4) & (at < 0.6), 1.2, 1)),
        ("not stationary", lambda at: 1 + 0.1 * at),
        ("warm-up too short", lambda at: np.where(at < 0.3, 1.5, 1)),
        ("warm-up too short", lambda at: np.where(at < 0.05, 3, 1)),
        ("warm-up too short", lambda at: 1 + 0.5 * np.exp(-10 * at)),
    ],
    ids=["last tenth", "two regimes", "bulge", "drift", "30 % are warm-up", "short warm-up", "exponential"],
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


def test_a_change_below_the_margin_is_tolerated_however_certain_it_is() -> None:
    noise = 1 + 0.001 * np.random.default_rng(1).standard_normal(10_000)
    assert stationarity(noise * np.linspace(1, 1.01, 10_000)).verdict == "stationary"
    assert stationarity(noise * np.linspace(1, 1.05, 10_000)).verdict == "not stationary"


def test_one_long_step_is_an_outlier_and_constant_steps_are_stationary() -> None:
    series = np.tile([1.0, 1.01, 0.99, 1.0, 1.02], 40)
    series[3] = 20.0
    assert stationarity(series).verdict == stationarity([0.2] * 100).verdict == "stationary"


def test_a_record_of_several_steps_is_one_value() -> None:
    values = np.random.default_rng(2).uniform(1, 1.1, 10)
    assert stationarity(np.repeat(values, 100)).verdict == "too few steps"


@pytest.mark.parametrize(
    ("factor", "first", "end", "warm_up"), [(1.5, 0, 50, 50), (0.75, 150, 200, 0), (1.5, 50, 100, 0)]
)
def test_a_change_has_its_place_and_its_size(factor: float, first: int, end: int, warm_up: int) -> None:
    at = np.arange(200)
    noise = 1 + 0.001 * np.random.default_rng(1).standard_normal(200)
    found = stationarity(noise * np.where((at >= first) & (at < end), factor, 1))
    assert found.change is not None
    assert found.change.value == pytest.approx(factor - 1, abs=0.01)
    assert (found.change.first, found.change.end) == (pytest.approx(first, abs=5), pytest.approx(end, abs=5))
    assert found.warm_up == pytest.approx(warm_up, abs=5)
