"""Intervals: over repeats, whose unit is the repeat, and within one run, over batches of correlated steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.stats.estimates import (
    MIN_STEPS,
    Estimate,
    bounds,
    difference,
    geometric_mean,
    lag_1,
    log_moments,
    mean_interval,
    on_basis,
    ratio,
    ratio_of_means,
    relative_half_width,
    share_mean,
)
from tests.support.step_series import MEAN_S, autocorrelated

SIMULATIONS = 20_000
OURS, BASE = [290.0, 300.0, 285.0, 310.0], [100.0, 104.0, 97.0]
rates = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=6)


def repeats(seed: int, count: int, mean: float, spread: float) -> np.ndarray:
    """Throughputs of `count` repeats in many simulated experiments: log-normal around `mean`."""
    return mean * np.exp(np.random.default_rng(seed).normal(0, spread, (SIMULATIONS, count)))


@pytest.mark.parametrize(
    ("count", "base_count", "spread", "base_spread"),
    [(2, 0, 0.02, 0), (10, 0, 0.02, 0), (3, 3, 0.02, 0.02), (3, 5, 0.05, 0.01), (10, 3, 0.02, 0.02)],
)
def test_intervals_of_means_and_ratios_cover(
    count: int, base_count: int, spread: float, base_spread: float
) -> None:
    logs, true = log_moments(repeats(1, count, 290.0, spread)), 290.0
    if base_count:
        logs, true = difference(logs, log_moments(repeats(2, base_count, 100.0, base_spread))), 2.9
    _, low, high = bounds(logs)
    assert 0.93 <= np.mean((low <= true) & (high >= true)) <= 0.97


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_intervals_are_those_of_scipy(confidence: float) -> None:
    logs, base_logs = np.log(OURS), np.log(BASE)
    own = stats.t.interval(confidence, 3, logs.mean(), stats.sem(logs))
    _, *found = bounds(log_moments(OURS), confidence)
    assert found == pytest.approx(np.exp(own))
    welch = stats.ttest_ind(logs, base_logs, equal_var=False).confidence_interval(confidence)
    estimate = ratio(OURS, BASE, confidence)
    assert (estimate.low, estimate.high) == pytest.approx((np.exp(welch.low), np.exp(welch.high)))
    expected = stats.ttest_1samp([0.30, 0.26, 0.35], 0.0).confidence_interval()
    shares = share_mean([0.30, 0.26, 0.35])
    assert (shares.low, shares.high) == pytest.approx((expected.low, expected.high))
    assert shares.value == pytest.approx(0.91 / 3)


@given(rates, rates)
def test_the_value_is_inside_and_swapping_sides_inverts(values: list[float], base: list[float]) -> None:
    there, back = ratio(values, base), ratio(base, values)
    assert there.value * back.value == pytest.approx(1)
    assert there.repeats == min(len(values), len(base))
    if there.low is None or there.high is None:
        assert there.repeats == 1
        return
    assert there.low <= there.value * (1 + 1e-9)
    assert there.high >= there.value * (1 - 1e-9)
    if there.low > 0 and there.high < 1e100:
        assert back.low == pytest.approx(1 / there.high)


@pytest.mark.filterwarnings("error")
def test_one_repeat_has_no_interval_and_equal_repeats_one_of_no_width() -> None:
    for alone in (
        geometric_mean([0.5]),
        ratio([0.5], [1.0, 1.1]),
        share_mean([0.5]),
        ratio_of_means([2.0], [4.0]),
    ):
        assert (alone.low, alone.high, alone.repeats) == (None, None, 1)
    for same in (
        ratio([200.0] * 2, [100.0] * 2),
        ratio_of_means([2.0, 4.0], [1.0, 2.0]),
        geometric_mean([2.0] * 2),
    ):
        assert (same.low, same.value, same.high) == pytest.approx((2.0, 2.0, 2.0))
    flat = log_moments([5.0, 5.0])
    assert difference(log_moments(OURS), flat).freedom == pytest.approx(3.0), "one side has no spread"
    assert np.isnan(difference(flat, flat).freedom)


def test_scaled_and_inverse_carry_the_bounds_along() -> None:
    estimate, alone = Estimate(80.0, 50.0, 100.0, 3), Estimate(80.0, None, None, 1)
    assert estimate.scaled(2) == Estimate(160.0, 100.0, 200.0, 3)
    assert estimate.inverse(8) == Estimate(0.1, 0.08, 0.16, 3)
    assert (alone.scaled(2), alone.inverse(8)) == (
        Estimate(160.0, None, None, 1),
        Estimate(0.1, None, None, 1),
    )
    assert on_basis(estimate, "repeats") == estimate
    assert on_basis(estimate, "not stationary") == Estimate(80.0, None, None, 3, "not stationary")


def test_a_ratio_of_means_is_not_the_mean_of_ratios_and_ends_at_zero() -> None:
    found = ratio_of_means([1.0, 1.8, 3.2], [1.0, 2.0, 3.0])
    assert found.value == pytest.approx(1.0)  # the ratios have the mean 0.99
    half = stats.t.ppf(0.975, 2) * 0.1 / np.sqrt(3)  # residuals 0, -0.2 and 0.2, divided by the mean 2
    assert (found.low, found.high) == pytest.approx((1 - half, 1 + half))
    assert (found.repeats, found.basis) == (3, "repeats")
    assert share_mean([1, 0]).low == 0.0
    single = np.array([0.1, 0.3], dtype=np.float32)
    assert ratio_of_means(single, single[::-1]) == ratio_of_means(*single.astype(float)[[[0, 1], [1, 0]]])


@pytest.mark.parametrize(("count", "correlation"), [(200, 0.0), (200, 0.8), (500, 0.8)])
def test_the_interval_of_correlated_steps_covers(count: int, correlation: float) -> None:
    rng, hits, runs = np.random.default_rng(3), 0, 300
    for _ in range(runs):
        series = autocorrelated(rng, count, correlation)
        half = relative_half_width(series)
        assert half is not None
        hits += abs(np.log(series.mean() / MEAN_S)) <= half
    assert 0.89 <= hits / runs <= 0.98


WAVE = 1 + 0.1 * np.sin(np.arange(200) / 200 * 2 * np.pi)


@pytest.mark.parametrize(
    ("series", "batches"),
    [(4, 2), (12, 5), (30, 7), (60, 10), (205, 10), (WAVE, 5)],  # correlated batches are joined
)
def test_the_interval_of_a_mean_is_students_t_on_batch_means(series: int | np.ndarray, batches: int) -> None:
    values = np.random.default_rng(1).uniform(1, 2, series) if isinstance(series, int) else series
    means = [part.mean() for part in np.array_split(values, batches)]
    half = stats.t.ppf(0.975, batches - 1) * stats.sem(means)
    found, mean = mean_interval(values), values.mean()
    assert (found.value, found.low, found.high) == pytest.approx((mean, mean - half, mean + half))
    assert (found.repeats, found.basis) == (1, "within run")
    expected = half / mean if values.size >= MIN_STEPS else None
    assert relative_half_width(values) == (expected and pytest.approx(expected))


def test_few_steps_have_no_interval_and_constant_steps_one_of_no_width() -> None:
    assert mean_interval(np.array([1.0, 2.0, 6.0])) == Estimate(3.0, None, None, 1)
    assert relative_half_width([0.1] * (MIN_STEPS - 1)) is None
    assert relative_half_width([0.1] * MIN_STEPS) == pytest.approx(0)
    assert (lag_1([1.0] * 3), lag_1(np.tile([1.0, -1.0], 500))) == (0, pytest.approx(-1, abs=0.01))
