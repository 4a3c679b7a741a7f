"""Intervals of the mean within one run."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.stats.batch_means import MAX_LAG_1, MIN_STEPS, lag_1, within_run
from analysis.stats.estimates import from_moments, geometric_mean
from tests.support.step_series import MEAN_S, autocorrelated

SIMULATIONS = 400


def coverage(count: int, correlation: float) -> float:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(SIMULATIONS):
        moments = within_run(autocorrelated(rng, count, correlation))
        assert moments is not None
        estimate = from_moments(moments, 1, "within run")
        assert estimate.low is not None
        assert estimate.high is not None
        hits += estimate.low <= MEAN_S <= estimate.high
    return hits / SIMULATIONS


@pytest.mark.parametrize(("count", "correlation"), [(200, 0.0), (200, 0.5), (200, 0.8), (500, 0.8)])
def test_interval_of_correlated_steps_covers(count: int, correlation: float) -> None:
    assert 0.89 <= coverage(count, correlation) <= 0.98


def test_interval_of_pooled_steps_would_not_cover() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(SIMULATIONS):
        series = autocorrelated(rng, 200, 0.8)
        low, high = stats.t.interval(0.95, series.size - 1, series.mean(), stats.sem(series))
        hits += low <= MEAN_S <= high
    assert hits / SIMULATIONS < 0.75


def test_few_steps_have_no_interval_and_constant_steps_one_of_no_width() -> None:
    assert within_run([0.1] * (MIN_STEPS - 1)) is None
    moments = within_run([0.1] * MIN_STEPS)
    assert moments is not None
    estimate = from_moments(moments, 1, "within run")
    assert (estimate.low, estimate.value, estimate.high) == pytest.approx((0.1, 0.1, 0.1))
    assert estimate.basis == "within run"


def test_mean_is_that_of_all_steps_and_the_interval_is_students_t_on_batch_means() -> None:
    series = np.random.default_rng(1).uniform(1, 2, 205)
    moments = within_run(series)
    assert moments is not None
    assert np.exp(moments.centre) == pytest.approx(series.mean())
    means = np.array([part.mean() for part in np.array_split(series, int(moments.freedom) + 1)])
    assert np.sqrt(moments.variance) == pytest.approx(stats.sem(means) / series.mean())


def test_correlated_batch_means_are_joined() -> None:
    slow_wave = 1 + 0.1 * np.sin(np.arange(200) / 200 * 2 * np.pi)
    alternating = np.tile([1.0, 2.0], 100)
    wave, other = within_run(slow_wave), within_run(alternating)
    assert wave is not None
    assert other is not None
    assert (wave.freedom, other.freedom) == (4, 9)


def test_a_correlation_at_the_bound_joins_nothing() -> None:
    means = [1.0, 2.0, 2.0, 2.0, 5.0, 2.0, 3.0, 3.0, 5.0, 5.0]
    assert lag_1(means) == MAX_LAG_1
    moments = within_run(np.repeat(means, 3))
    assert moments is not None
    assert moments.freedom == 9


def test_single_precision_is_not_the_precision_of_the_arithmetic() -> None:
    single = np.random.default_rng(1).uniform(1, 2, 205).astype(np.float32)
    double = single.astype(np.float64)
    assert lag_1(single) == lag_1(double)
    assert within_run(single) == within_run(double)


def test_lag_1_of_known_series() -> None:
    assert lag_1([1.0, 1.0, 1.0]) == 0
    assert lag_1(np.tile([1.0, -1.0], 500)) == pytest.approx(-1, abs=0.01)


def test_a_mark_of_the_basis_stays_with_scaled_and_inverted_estimates() -> None:
    moments = within_run(np.tile([1.0, 2.0], 50))
    assert moments is not None
    estimate = from_moments(moments, 1, "within run")
    assert estimate.scaled(2).basis == estimate.inverse().basis == "within run"
    assert geometric_mean([1.0, 2.0]).basis == "repeats"
