"""MSER-5 and the test of stationarity, on generated series with a known answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress
from scipy.stats import t as student_t

from analysis.stats.estimates import geometric_mean
from analysis.stats.warm_up import BATCH, MIN_STEPS, common_warm_up, mser5, stationarity, why_not_left_out
from tests.support.step_series import MEAN_S, autocorrelated

SIMULATIONS = 200
Floats = np.ndarray


def share_of(verdict: str, series: Callable[[np.random.Generator], Floats]) -> float:
    rng = np.random.default_rng(7)
    return sum(stationarity(series(rng)).verdict == verdict for _ in range(SIMULATIONS)) / SIMULATIONS


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
    assert mser5([3.0] * 10 + [1.0, 1.1] * 45) == 10
    assert mser5([1.0] * 100) == 0
    assert mser5([1.0] * 9) == 0


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e-6])
def test_mser5_does_not_depend_on_the_unit_and_rounding_errors_of_a_constant_rest_are_no_warm_up(
    unit: float,
) -> None:
    values = np.array([3.3] * 5 + [0.7] * 195)
    assert mser5(unit * values) == 5
    assert mser5(unit * np.array([3.0] * 10 + [1.0, 1.1] * 45)) == 10


def test_mser5_does_not_depend_on_a_long_common_duration() -> None:
    values = np.array([3.0] * 10 + [1.0, 1.1] * 45)
    assert mser5(1e8 + values) == 10


def test_single_precision_is_not_the_precision_of_the_arithmetic() -> None:
    single = noise(5, count=200).astype(np.float32)
    assert stationarity(single) == stationarity(single.astype(np.float64))


@pytest.mark.parametrize("lag_1", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("count", [200, 1000])
def test_a_stationary_series_is_seldom_refused(count: int, lag_1: float) -> None:
    assert share_of("stationary", lambda rng: autocorrelated(rng, count, lag_1)) >= 0.97


@pytest.mark.parametrize(
    ("verdict", "profile"),
    [
        ("not stationary", lambda at: 1 + 0.2 * at),
        ("not stationary", lambda at: np.where(at < 0.6, 1, 1.2)),
        ("warm-up too short", lambda at: np.where(at < 0.3, 1.5, 1)),
        ("warm-up too short", lambda at: 1 + 0.5 * np.exp(-10 * at)),
    ],
    ids=["drift of 20 %", "20 % slower from 60 % on", "30 % are warm-up", "exponential warm-up"],
)
def test_a_change_is_found(verdict: str, profile: Callable[[Floats], Floats]) -> None:
    at = np.linspace(0, 1, 400)
    assert share_of(verdict, lambda rng: autocorrelated(rng, 400, 0.5) * profile(at)) >= 0.9


def test_a_change_below_the_margin_is_tolerated_however_certain_it_is() -> None:
    assert stationarity(np.linspace(1, 1.01, 10_000)).verdict == "stationary"
    assert stationarity(np.linspace(1, 1.05, 10_000)).verdict == "not stationary"


def test_few_steps_are_a_verdict_of_their_own() -> None:
    rising = np.linspace(1, 2, MIN_STEPS)
    assert stationarity(rising[:-1]).verdict == "too few steps"
    assert stationarity(rising[:-1]).publishable
    assert stationarity(rising).verdict == "not stationary"
    assert not stationarity(rising).publishable


def test_one_long_step_is_an_outlier_and_not_a_warm_up() -> None:
    series = np.tile([1.0, 1.01, 0.99, 1.0, 1.02], 40)
    series[3] = 20.0
    assert stationarity(series).verdict == "stationary"


def launches(generator: np.random.Generator, profile: Callable[[Floats], Floats]) -> list[Floats]:
    """Three repeats of 300 steps of 1 s that differ by 1 %, with noise of lag-1 autocorrelation 0.5."""
    levels = 1 + 0.01 * generator.standard_normal(3)
    return [level * profile(np.arange(300.0)) * autocorrelated(generator, 300, 0.5) for level in levels]


@pytest.mark.parametrize(
    "profile",
    [
        lambda steps: np.where(steps < 60, 1.3, 1.0),
        lambda steps: 1 + 0.4 * np.exp(-steps / 20),
    ],
)
def test_the_mean_after_a_long_warm_up_is_within_its_interval(profile: Callable[[Floats], Floats]) -> None:
    """The interval over repeats contains the steady mean as often as its confidence says; without truncation
    the mean is 5 % too long."""
    generator, inside, cut, count = np.random.default_rng(7), 0, 0, 200
    for _ in range(count):
        repeats = launches(generator, profile)
        dropped = common_warm_up(repeats)
        cut += dropped > 0
        found = geometric_mean(np.array([each[dropped:].mean() for each in repeats]))
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= MEAN_S <= found.high
    assert cut / count >= 0.9
    assert inside / count >= 0.9


@pytest.mark.parametrize(
    "profile",
    [
        *(lambda steps, slow=slow: np.where(steps < 20, slow, 1.0) for slow in (1.05, 1.5, 3.0)),
        lambda steps: 1 + np.exp(-steps / 15),
    ],
    ids=["5 %", "50 %", "three times", "exponential"],
)
def test_a_warm_up_of_one_repeat_is_left_out_where_noise_moves_the_minimum(
    profile: Callable[[Floats], Floats],
) -> None:
    """MSER-5 drops twice the warm-up in one run of eight: the median of these steps is the usual one."""
    generator, steps, beyond, cut, count = np.random.default_rng(7), np.arange(150.0), 0, 0, 80
    for _ in range(count):
        series = profile(steps) * (1 + 0.01 * generator.standard_normal(150))
        beyond += mser5(series) > 40
        dropped = common_warm_up([series])
        left_out = dropped >= 20 and not why_not_left_out(series, dropped)
        cut += left_out and np.mean(profile(steps)[dropped:]) < 1.02
    assert beyond >= 5
    assert cut == count


@pytest.mark.parametrize(
    ("seed", "slow", "drop", "compared", "parts"), [(3, 14, 40, 20, 2), (1, 9, 35, 17, 1)]
)
def test_a_part_of_the_dropped_steps_has_the_interval_of_all_parts_together(
    seed: int, slow: int, drop: int, compared: int, parts: int
) -> None:
    """Halves of the dropped steps count down to ten steps; their intervals share 0.1 % of false alarms."""
    series = noise(seed, count=140, cv=0.001) * np.where(np.arange(140) < slow, 1.5, 1)
    series[drop - 5 : drop] *= 1.3  # spikes: MSER-5 drops all steps up to them
    found = stationarity(series)
    assert (found.warm_up, found.compared) == (drop, compared)
    assert found.shift is not None
    expected = reference_shift(series[:compared], series[drop:], 1 - 0.001 / parts)
    assert astuple(found.shift) == pytest.approx(expected)


def test_the_reason_of_a_warm_up_that_mser5_overshoots_names_both_numbers_of_steps() -> None:
    series = noise(1, count=140, cv=0.001) * np.where(np.arange(140) < 18, 1.5, 1)
    series[50:55] *= 1.3  # spikes: MSER-5 drops all steps up to them
    found = stationarity(series)
    assert (found.verdict, found.warm_up, found.compared) == ("warm-up too short", 55, 27)
    assert found.reason == (
        "the first 27 measured steps are 50 % longer than those after the first 55 (MSER-5)"
    )


def test_a_change_beyond_the_first_half_names_the_steps_that_differ() -> None:
    """Most of the first half are usual steps, so that its median is the usual one."""
    at = np.arange(200)
    found = stationarity(
        noise(3, count=200, cv=0.001) * np.where((at < 26) | ((at > 85) & (at < 102)), 1.5, 1)
    )
    assert (found.verdict, found.warm_up, found.compared) == ("not stationary", 100, 50)
    assert found.reason == (
        "the first 50 measured steps are 50 % longer than the second half (MSER-5 at its limit)"
    )


@pytest.mark.parametrize(("last", "verdict"), [(92, "not stationary"), (93, "warm-up too short")])
def test_the_last_quarter_of_the_first_half_tells_a_warm_up_from_a_change(last: int, verdict: str) -> None:
    """Of the steps from 75 to 99, 13 or 12 are slow; of the last twenty, 8 or 7."""
    at = np.arange(200)
    slow = (at < 26) | ((at >= 75) & (at < 80)) | ((at >= last) & (at < 102))
    found = stationarity(noise(3, count=200, cv=0.001) * np.where(slow, 1.5, 1))
    assert (found.verdict, found.warm_up) == (verdict, 100)


def test_a_warm_up_is_not_left_out_where_the_rest_is_short_or_changes() -> None:
    steps, generator = np.arange(300.0), np.random.default_rng(3)
    steady = autocorrelated(generator, 300, 0.0)
    long = np.where(steps < 60, 1.5, 1.0) * autocorrelated(generator, 300, 0.0)
    assert common_warm_up([steady, steady]) == 0
    dropped = common_warm_up([long, steady])
    assert dropped == pytest.approx(60, abs=5)
    assert why_not_left_out(long, dropped) == why_not_left_out(steady, dropped) == ""
    least = dropped + MIN_STEPS // 2
    assert why_not_left_out(steady[:least], dropped) == ""
    assert why_not_left_out(steady[: least - 1], dropped) == "fewer than 30 measured steps would be left"
    drifting = steady * (1 + steps / 300)
    assert why_not_left_out(drifting, dropped) == "the steps after the warm-up are not stationary"


def reference(
    change: float, error: float, freedom: int, usual: float, confidence: float = 0.99
) -> tuple[float, float, float]:
    half = float(student_t.ppf(0.5 + confidence / 2, freedom)) * error
    return change / usual, (change - half) / usual, (change + half) / usual


def reference_shift(head: Floats, rest: Floats, confidence: float = 0.99) -> tuple[float, float, float]:
    """A median's variance is taken as that of one step / number of steps; 12 batches give that of one."""
    batches = np.array_split(rest, 12)
    of_one_step = np.var([np.median(batch) for batch in batches], ddof=1) * len(rest) / 12
    error = np.sqrt(of_one_step / len(head) + of_one_step / len(rest))
    return reference(np.median(head) - np.median(rest), error, 11, np.median(rest), confidence)


def reference_trend(series: Floats) -> tuple[float, float, float]:
    line = linregress(range(12), [np.median(batch) for batch in np.array_split(series, 12)])
    return reference(12 * line.slope, 12 * line.stderr, 10, np.median(series))


def noise(seed: int, count: int = 600, cv: float = 0.02) -> Floats:
    return 0.2 * (1 + cv * np.random.default_rng(seed).standard_normal(count))


@pytest.mark.parametrize(("factor", "text"), [(1.5, "50 % longer"), (0.75, "25 % shorter")])
def test_a_warm_up_has_its_length_and_its_shift_and_the_rest_its_trend(factor: float, text: str) -> None:
    series = noise(1, cv=0.003) * np.where(np.arange(600) < 40, factor, 1)
    found = stationarity(series)
    assert (found.verdict, found.warm_up, found.publishable) == ("warm-up too short", 40, False)
    assert found.shift is not None
    assert found.trend is not None
    assert astuple(found.shift) == pytest.approx(reference_shift(series[:40], series[40:]))
    assert astuple(found.trend) == pytest.approx(reference_trend(series[40:]))
    assert found.reason == f"the first 40 measured steps are {text} than the rest (MSER-5)"


def test_a_change_below_the_margin_is_no_warm_up_and_the_trend_is_that_of_all_steps() -> None:
    series = noise(1, cv=0.003) * np.where(np.arange(600) < 60, 1.015, 1)
    drop = mser5(series)
    assert drop == 60
    found = stationarity(series)
    assert (found.verdict, found.warm_up) == ("stationary", 0)
    assert found.shift is not None
    assert found.trend is not None
    assert astuple(found.shift) == pytest.approx(reference_shift(series[:drop], series[drop:]))
    assert astuple(found.trend) == pytest.approx(reference_trend(series))


def test_a_slow_drift_has_its_size_and_its_interval() -> None:
    series = noise(4) * np.linspace(1, 1.05, 600)
    drop = mser5(series)
    assert 0 < drop < 300
    found = stationarity(series)
    assert (found.verdict, found.warm_up, found.compared) == ("not stationary", drop, drop)
    assert found.shift is not None
    assert found.trend is not None
    assert astuple(found.shift) == pytest.approx(reference_shift(series[:drop], series[drop:]))
    assert astuple(found.trend) == pytest.approx(reference_trend(series))
    assert found.reason == "the step time drifts by +5 % from start to end"


def test_a_minimum_at_the_limit_has_its_position() -> None:
    series = noise(2, count=605, cv=0.003) * np.where(np.arange(605) < 300, 1.2, 1)  # 121 batches
    found = stationarity(series)
    assert (found.verdict, found.warm_up, found.trend) == ("not stationary", 300, None)


def test_without_dropped_steps_nothing_is_compared() -> None:
    found = stationarity([0.2] * 100)
    assert (found.verdict, found.warm_up, found.shift, found.compared) == ("stationary", 0, None, 0)


def test_the_reason_names_the_change_and_its_size() -> None:
    steady = np.tile([1.0, 1.01, 0.99, 1.0, 1.0], 40)
    at = np.arange(200)
    assert stationarity(steady).reason == ""
    assert stationarity(steady * np.where(at < 40, 1.5, 1)).reason == (
        "the first 40 measured steps are 50 % longer than the rest (MSER-5)"
    )
    assert stationarity(steady * (1 + at / 199)).reason.startswith("the ")
    falling = stationarity(steady * np.where(at < 100, 1.5, 1))
    assert (falling.verdict, falling.publishable) == ("not stationary", False)
    assert falling.reason == (
        "the first half of the measured steps is 50 % longer than the second (MSER-5 at its limit)"
    )
    assert "too few" in stationarity(steady[:20]).reason
