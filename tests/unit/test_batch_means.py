"""Spread of the mean within one run."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.stats.estimates import MIN_STEPS, lag_1, relative_half_width
from tests.support.step_series import MEAN_S, autocorrelated

SIMULATIONS = 400


@pytest.mark.parametrize(("count", "correlation"), [(200, 0.0), (200, 0.5), (200, 0.8), (500, 0.8)])
def test_interval_of_correlated_steps_covers(count: int, correlation: float) -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(SIMULATIONS):
        series = autocorrelated(rng, count, correlation)
        half = relative_half_width(series)
        assert half is not None
        hits += abs(np.log(series.mean() / MEAN_S)) <= half
    assert 0.89 <= hits / SIMULATIONS <= 0.98


def test_few_steps_have_no_interval_and_constant_steps_one_of_no_width() -> None:
    assert relative_half_width([0.1] * (MIN_STEPS - 1)) is None
    assert relative_half_width([0.1] * MIN_STEPS) == pytest.approx(0)


@pytest.mark.parametrize(
    ("series", "batches"),
    [
        (np.random.default_rng(1).uniform(1, 2, 205), 10),
        (1 + 0.1 * np.sin(np.arange(200) / 200 * 2 * np.pi), 5),  # correlated batches are joined
    ],
)
def test_the_interval_is_students_t_on_batch_means(series: np.ndarray, batches: int) -> None:
    means = np.array([part.mean() for part in np.array_split(series, batches)])
    half = stats.t.ppf(0.975, batches - 1) * stats.sem(means) / series.mean()
    assert relative_half_width(series) == pytest.approx(half)


def test_lag_1_of_known_series() -> None:
    assert lag_1([1.0, 1.0, 1.0]) == 0
    assert lag_1(np.tile([1.0, -1.0], 500)) == pytest.approx(-1, abs=0.01)
