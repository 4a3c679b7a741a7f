"""Intervals whose unit is the repeat."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from analysis.stats.estimates import (
    Estimate,
    bounds,
    difference,
    from_moments,
    geometric_mean,
    log_moments,
    on_basis,
    ratio,
    ratio_of_means,
    share_mean,
)

SIMULATIONS = 20_000
rates = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=6)


def repeats(seed: int, count: int, mean: float, spread: float) -> np.ndarray:
    """Throughputs of `count` repeats in many simulated experiments: log-normal around `mean`."""
    return mean * np.exp(np.random.default_rng(seed).normal(0, spread, (SIMULATIONS, count)))


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_mean_interval_covers_what_it_says(count: int) -> None:
    _, low, high = bounds(log_moments(repeats(count, count, 80.0, 0.02)))
    assert 0.93 <= np.mean((low <= 80.0) & (high >= 80.0)) <= 0.97


@pytest.mark.parametrize(
    ("count", "base_count", "spread", "base_spread"),
    [(3, 3, 0.02, 0.02), (5, 5, 0.02, 0.02), (3, 5, 0.05, 0.01), (5, 3, 0.01, 0.05), (10, 3, 0.02, 0.02)],
)
def test_ratio_interval_covers_what_it_says(
    count: int, base_count: int, spread: float, base_spread: float
) -> None:
    sides = repeats(1, count, 290.0, spread), repeats(2, base_count, 100.0, base_spread)
    _, low, high = bounds(difference(*map(log_moments, sides)))
    assert 0.93 <= np.mean((low <= 2.9) & (high >= 2.9)) <= 0.97


def test_ratio_agrees_with_scipys_welch_interval() -> None:
    ours, base = [290.0, 300.0, 285.0, 310.0], [100.0, 104.0, 97.0]
    result = scipy_stats.ttest_ind(np.log(ours), np.log(base), equal_var=False).confidence_interval(0.95)
    estimate = ratio(ours, base)
    assert estimate.low == pytest.approx(np.exp(result.low))
    assert estimate.high == pytest.approx(np.exp(result.high))


@given(rates, rates)
def test_the_value_is_inside_and_swapping_sides_inverts(values: list[float], base: list[float]) -> None:
    there, back = ratio(values, base), ratio(base, values)
    assert there.value * back.value == pytest.approx(1)
    if there.low is None or there.high is None:
        assert min(len(values), len(base)) == 1
        return
    assert there.low <= there.value * (1 + 1e-9)
    assert there.high >= there.value * (1 - 1e-9)
    if there.low > 0 and there.high < 1e100:
        assert back.low == pytest.approx(1 / there.high)


def test_one_launch_has_no_interval() -> None:
    assert geometric_mean([80.0]).low is None
    assert ratio([80.0], [40.0, 41.0]).high is None
    assert ratio([80.0], [40.0, 41.0]).repeats == 1


def test_launches_that_agree_exactly_have_an_interval_of_no_width() -> None:
    estimate = ratio([200.0, 200.0], [100.0, 100.0])
    assert (estimate.low, estimate.high) == pytest.approx((2.0, 2.0))


def test_scaled_and_inverse_carry_the_bounds_along() -> None:
    estimate = Estimate(80.0, 50.0, 100.0, 3)
    assert estimate.scaled(2) == Estimate(160.0, 100.0, 200.0, 3)
    assert estimate.inverse(8) == Estimate(0.1, 0.08, 0.16, 3)
    assert estimate.inverse() == estimate.inverse(1)
    alone = Estimate(80.0, None, None, 1)
    assert alone.scaled(2) == Estimate(160.0, None, None, 1)
    assert alone.inverse(8) == Estimate(0.1, None, None, 1)


def test_the_mean_of_different_states_keeps_its_value_and_repeats() -> None:
    found = on_basis(Estimate(80.0, 50.0, 100.0, 3), "not stationary")
    assert found == Estimate(80.0, None, None, 3, "not stationary")


def test_estimates_count_repeats_and_a_ratio_those_of_its_smaller_side() -> None:
    two, three = [80.0, 81.0], [40.0, 41.0, 42.0]
    assert geometric_mean(three).repeats == 3
    assert [ratio(two, three).repeats, ratio(three, two).repeats] == [2, 2]


@pytest.mark.parametrize("confidence", [0.5, 0.8])
def test_confidence_is_the_coverage_asked_for(confidence: float) -> None:
    values, base = [290.0, 300.0, 285.0], [100.0, 104.0, 97.0, 99.0]
    logs = np.log(values)
    low, high = scipy_stats.t.interval(confidence, 2, logs.mean(), scipy_stats.sem(logs))
    _, *found = bounds(log_moments(values), confidence)
    assert found == pytest.approx([np.exp(low), np.exp(high)])
    welch = scipy_stats.ttest_ind(logs, np.log(base), equal_var=False).confidence_interval(confidence)
    assert ratio(values, base, confidence).low == pytest.approx(np.exp(welch.low))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("values", "base"),
    [([80.0], [40.0, 41.0]), ([80.0, 81.0], [40.0]), ([2.0, 2.0], [1.0, 1.0]), ([2.0], [1.0])],
)
def test_no_interval_and_no_spread_are_no_floating_point_warning(
    values: list[float], base: list[float]
) -> None:
    ratio(values, base)
    geometric_mean(values)


def test_single_precision_is_not_the_precision_of_the_arithmetic() -> None:
    single = np.array([0.1, 0.3], dtype=np.float32)
    double = single.astype(np.float64)
    assert geometric_mean(single) == geometric_mean(double)
    assert share_mean(single) == share_mean(double)
    assert ratio_of_means(single, single[::-1] ** 2) == ratio_of_means(double, single[::-1] ** 2)
    assert ratio_of_means(double, single) == ratio_of_means(double, double)


def test_mean_of_shares_agrees_with_scipys_t_interval() -> None:
    shares = [0.30, 0.26, 0.35]
    expected = scipy_stats.ttest_1samp(shares, 0.0).confidence_interval()
    mean = share_mean(shares)
    assert (mean.low, mean.high) == pytest.approx((expected.low, expected.high))
    assert (mean.value, mean.repeats) == (pytest.approx(0.91 / 3), 3)
    assert share_mean([1, 0]).low == 0.0, "a share is not negative"
    assert share_mean([0.5]) == Estimate(0.5, None, None, 1)
    assert share_mean(np.array([0.2, 0.4], dtype=np.float32)).low == 0.0


def test_differences_of_logarithms_are_ratios_of_two_sides() -> None:
    values, base = [290.0, 300.0, 285.0, 310.0], [100.0, 104.0, 97.0]
    parted = difference(log_moments(values), log_moments(base))
    assert from_moments(parted, 3) == pytest.approx(ratio(values, base))
    assert log_moments(base).freedom == 2.0
    same = log_moments([5.0, 5.0])
    assert difference(log_moments(values), same).freedom == pytest.approx(3.0), "one side has no spread"
    assert np.isnan(difference(same, same).freedom)


def test_a_ratio_of_means_is_not_the_mean_of_ratios() -> None:
    found = ratio_of_means([1.0, 1.8, 3.2], [1.0, 2.0, 3.0])
    assert found.value == pytest.approx(1.0)  # the ratios have the mean 0.99
    assert found.low is not None
    assert found.high is not None
    half = scipy_stats.t.ppf(0.975, 2) * 0.1 / np.sqrt(3)  # residuals 0, -0.2 and 0.2, divided by the mean 2
    assert (found.low, found.high) == pytest.approx((1 - half, 1 + half))
    assert (found.repeats, found.basis) == (3, "repeats")
    same = ratio_of_means([2.0, 4.0], [1.0, 2.0])
    assert (same.low, same.value, same.high) == pytest.approx((2.0, 2.0, 2.0))
    assert ratio_of_means([2.0], [4.0]) == Estimate(0.5, None, None, 1)
