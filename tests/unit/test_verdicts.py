"""Faster, slower, equivalent within a margin, or unsettled; the repeats that a comparison needs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.stats.estimates import geometric_mean, ratio
from analysis.stats.verdicts import (
    benjamini_hochberg,
    compare,
    repeats_needed,
    repeats_within,
    spread_of,
    two_groups,
    verdicts,
)

SIMULATIONS = 300
rates = st.lists(st.floats(50, 200), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("true_ratio", "spread", "repeats", "verdict", "least", "most"),
    [
        (1.0, 0.03, 5, "faster", 0, 0.04),
        (1.0, 0.03, 5, "slower", 0, 0.04),
        (1.02, 0.01, 5, "equivalent", 0, 0.065),  # at the margin
        (1.1, 0.01, 5, "faster", 0.99, 1),
        (0.9, 0.01, 5, "slower", 0.99, 1),
        (1.0, 0.003, 5, "equivalent", 0.99, 1),
        (1.05, 0.2, 3, "unsettled", 0.85, 1),
    ],
)
def test_each_verdict_has_its_rate(
    true_ratio: float, spread: float, repeats: int, verdict: str, least: float, most: float
) -> None:
    rng = np.random.default_rng(11)
    sides = np.exp(rng.normal(0, spread, (SIMULATIONS, 2, repeats)))
    found = [verdicts([compare(true_ratio * values, base)])[0] for values, base in sides]
    assert least <= found.count(verdict) / SIMULATIONS <= most  # type: ignore[arg-type]


def test_p_values_are_those_of_welchs_tests() -> None:
    values, base = [103.0, 101.0, 104.0, 99.0], [100.0, 102.0, 98.0]
    found = compare(values, base)
    logs, base_logs = np.log(values), np.log(base)
    assert found.p_difference == pytest.approx(stats.ttest_ind(logs, base_logs, equal_var=False).pvalue)
    above = stats.ttest_ind(logs - np.log(1.02), base_logs, equal_var=False, alternative="less").pvalue
    below = stats.ttest_ind(logs + np.log(1.02), base_logs, equal_var=False, alternative="greater").pvalue
    assert found.p_equivalence == pytest.approx(max(above, below))
    assert found.ratio == ratio(values, base)


@given(rates, rates)
def test_swapping_the_sides_swaps_faster_and_slower(values: list[float], base: list[float]) -> None:
    there, back = verdicts([compare(values, base)]), verdicts([compare(base, values)])
    swapped = {"faster": "slower", "slower": "faster"}
    assert back == [swapped.get(there[0], there[0])]


@pytest.mark.filterwarnings("error")
def test_one_repeat_or_repeats_that_agree_exactly_settle_nothing() -> None:
    sides = [
        ([200.0], [100.0, 100.1]),
        ([200.0, 200.1], [100.0]),
        ([2.0, 2.0], [1.0, 1.0]),
        ([1.0, 1.0], [1.0, 1.0]),
    ]
    assert verdicts([compare(*side) for side in sides]) == ["unsettled"] * 4


def test_many_comparisons_of_equal_configurations_find_no_difference_at_the_stated_rate() -> None:
    """Twenty comparisons each: without a correction, 64 % of the sweeps would have a false finding."""
    rng, false = np.random.default_rng(5), 0
    for _ in range(150):
        found = verdicts([compare(*np.exp(rng.normal(0, 0.05, (2, 4)))) for _ in range(20)])
        false += any(verdict in ("faster", "slower") for verdict in found)
    assert false / 150 <= 0.08


def test_the_best_of_equal_configurations_is_seldom_faster() -> None:
    rng, corrected, chosen = np.random.default_rng(6), 0, 0
    for _ in range(150):
        rates = np.exp(rng.normal(0, 0.01, (10, 5)))
        best = int(np.log(rates).mean(axis=1).argmax())
        found = [compare(rates[best], each) for each in np.delete(rates, best, axis=0)]
        corrected, chosen = (
            corrected + ("faster" in verdicts(found, 10)),
            chosen + ("faster" in verdicts(found)),
        )
    assert corrected / 150 <= 0.03 < 0.05 < chosen / 150


def test_a_comparison_that_could_not_be_made_does_not_count_among_the_others() -> None:
    assert benjamini_hochberg([0.01, float("nan"), 0.04])[::2] == pytest.approx([0.02, 0.04])
    assert np.isnan(benjamini_hochberg([float("nan")])).all()
    assert benjamini_hochberg([]) == []


def test_the_spread_is_pooled_over_groups_of_repeats() -> None:
    one, two = [1.0, np.exp(0.02)], [5.0, 5.0, 5.0]
    assert spread_of([one, two, [7.0]]) == pytest.approx(np.sqrt(2 * 0.01**2 / 3))
    assert spread_of([[7.0], []]) is None


@pytest.mark.parametrize(
    ("spread", "effect", "repeats"),
    [(0.01, 0.05, 3), (0.01, 0.02, 6), (0.02, 0.02, 18), (0.0, 0.02, 2), (0.1, 0.01, None)],
)
def test_so_many_repeats_settle_four_of_five_differences(
    spread: float, effect: float, repeats: int | None
) -> None:
    assert repeats_needed(spread, effect) == repeats
    if repeats and spread:
        sides = np.exp(np.random.default_rng(1).normal(0, spread, (SIMULATIONS, 2, repeats)))
        found = [compare((1 + effect) * values, base).p_difference < 0.05 for values, base in sides]
        assert np.mean(found) >= 0.75


@given(st.lists(st.floats(90, 110), min_size=2, max_size=12), st.floats(0.001, 0.2))
def test_repeats_suffice_where_the_interval_is_narrow(values: list[float], within: float) -> None:
    estimate = geometric_mean(values)
    assert estimate.high is not None
    is_narrow = estimate.high / estimate.value - 1 <= within * (1 + 1e-9)
    assert (repeats_within(values, within) == len(values)) == is_narrow
    assert len(values) <= repeats_within(values, within) <= 100


def test_intervals_of_added_repeats_cover() -> None:
    """Repeats that stop on their own interval cover a little less than 95 % (docs/statistics.md)."""
    random, covered = np.random.default_rng(0), 0
    for _ in range(400):
        logs, count = random.normal(0, 0.02, 10), 3
        while (needed := min(10, repeats_within(np.exp(logs[:count]), 0.02))) > count:
            count = needed
        estimate = geometric_mean(np.exp(logs[:count]))
        covered += estimate.low is not None and estimate.low <= 1 <= (estimate.high or 0)
    assert 0.88 <= covered / 400 <= 0.98
    assert repeats_within([80.0], 0.02) == 2


def test_two_groups_are_seen_and_seldom_among_equal_repeats() -> None:
    assert two_groups([52.1, 40.0, 40.1, 51.9]) == pytest.approx((40.05, 52.0))
    for values in (
        [40.0, 40.1, 52.0],
        [40.0, 40.1, 40.2, 52.0],  # one alone is no group
        [40.0, 51.9, 52.0, 52.1],
        [40.0, 40.01, 40.5, 40.51],  # less than 3 % apart
        [40.0, 42.0, 52.0, 52.1],  # one group is as wide as the gap
    ):
        assert two_groups(values) is None
    rng = np.random.default_rng(2)
    assert np.mean([two_groups(each) is not None for each in np.exp(rng.normal(0, 0.05, (1000, 4)))]) <= 0.02
