"""The rule for slow ranks and for a slow half of the nodes, on matrices whose results are known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from scipy.stats import t

from analysis.results.culprits import Culprit, diagnose
from analysis.results.slow_ranks import (
    correlation,
    median_of_others,
    sensitivity,
    slow_half,
    slow_ranks,
)
from analysis.stats.estimates import mean_interval
from tests.support.step_series import ar1
from tests.support.straggler_records import BASE_S, MATRICES, delays, generate, seconds_of

STEPS = 60


def levels(*seconds: float, steps: int = 20) -> np.ndarray:
    """Ranks of which each has the same own seconds in all steps."""
    return np.repeat(np.array(seconds)[:, None], steps, axis=1)


@pytest.mark.parametrize(("slow_windows", "slow"), [((0, 2, 4, 6, 8, 9), [1]), ((0, 2, 4, 6, 8), [])])
def test_a_rank_is_slow_in_six_of_ten_windows_or_not_at_all(slow_windows, slow):
    own_s = 1 + delays(8, 100, jitter_s=0.005)
    for window in slow_windows:
        own_s[1, 10 * window : 10 * (window + 1)] += 0.3
    assert slow_ranks(own_s) == slow


@pytest.mark.parametrize(("excess", "slow"), [(0.028, []), (0.032, [1])])
def test_a_slow_rank_is_three_percent_above_the_median_of_the_others(excess, slow):
    assert slow_ranks(1 + delays(4, 60, slow=[1], slow_s=excess, jitter_s=0.0005)) == slow


def test_a_rank_that_is_slow_in_few_independent_steps_is_not_slow_beyond_chance():
    """100 steps of the wave are worth three: the limit of Student's t is 7 standard deviations of 0.07 s."""
    wave = 0.1 * np.sin(np.arange(100) * 2 * np.pi / 12)
    for excess_s, slow in ((0.4, []), (0.6, [1])):
        assert slow_ranks(np.stack([np.ones(100), 1 + excess_s + wave])) == slow


def test_each_rank_has_the_limit_of_its_own_jitter():
    own_s = levels(1.0, 1.04, 1.0, 1.0, 1.0, steps=100)
    own_s[0] = np.where(np.arange(100) % 2, 0.7, 1.3)
    assert slow_ranks(own_s) == [1]


def test_three_steps_name_nobody():
    assert slow_ranks(levels(1.0, 1.0, 1.0, 2.0, steps=3)) == []


def test_at_least_half_of_the_ranks_are_the_reference():
    for levels, slow in (([1, 1, 2, 3], [2, 3]), ([1, 2, 8, 40], []), ([5, 1], [0])):
        assert slow_ranks(np.repeat(np.array(levels, dtype=float)[:, None], 50, axis=1)) == slow


def test_the_ranks_of_a_slow_node_share_the_last_place():
    own_s = 0.12 + delays(8, 20, slow=[4, 5, 6, 7], slow_s=0.03, jitter_s=0.005)
    assert slow_ranks(own_s) == [4, 5, 6, 7]


@given(MATRICES)
def test_the_median_of_the_others_leaves_out_the_rank_itself(values):
    expected = [np.median(np.delete(values, rank, axis=0), axis=0) for rank in range(len(values))]
    assert median_of_others(values) == pytest.approx(np.array(expected))


def test_the_interval_of_a_mean_is_students_over_means_of_batches():
    for steps, batches in ((4, 2), (12, 5), (30, 7), (60, 10)):
        series = np.random.default_rng(steps).standard_normal(steps)
        means = [part.mean() for part in np.array_split(series, batches)]
        error = np.std(means, ddof=1) / np.sqrt(batches)
        expected = t.interval(0.95, batches - 1, loc=series.mean(), scale=error)
        found = mean_interval(series)
        assert (found.value, found.low, found.high) == pytest.approx((series.mean(), *expected))
        assert (found.repeats, found.basis) == (1, "within run")
    few = mean_interval(np.array([1.0, 2.0, 6.0]))
    assert (few.value, few.low, few.high) == (3.0, None, None)


def test_the_correlation_is_the_median_over_ranks_without_the_bias_of_few_steps():
    random = np.random.default_rng(6)
    for lag_1 in (0.0, 0.5, 0.9):
        rows = np.stack([ar1(random, 100, lag_1, 0.1) for _ in range(101)])
        assert correlation(rows) == pytest.approx(lag_1, abs=0.03)
    alternating = np.tile([1.0, -1.0], (3, 10))
    assert correlation(alternating) == 0.0
    assert correlation(np.zeros((2, 20))) == pytest.approx((1 / 20) / (1 - 4 / 20))
    assert correlation(np.zeros((2, 4))) == pytest.approx((1 / 4) / (1 - 0.5))
    assert correlation(np.linspace(0, 1, 200)[None, :]) == 0.98


def test_the_sensitivity_is_that_of_the_strictest_rule():
    """Equal ranks need 3 %; ranks that differ by themselves 3.5 robust standard deviations of their means,
    which more steps do not change."""
    equal = sensitivity(np.full((4, 50), 2.0))
    assert (equal.excess_s, equal.own_s, equal.share) == pytest.approx((0.06, 2.0, 0.03))
    assert (equal.more_steps, equal.suffices) == (0, True)
    apart = sensitivity(levels(1.0, 2.0, 3.0, 4.0, 5.0))
    assert apart.excess_s == pytest.approx(3.5 * 1.4826)
    assert (apart.more_steps, apart.suffices) == (None, False)


def test_three_steps_and_no_own_work_find_nothing():
    for own_s in (np.ones((2, 3)), np.zeros((2, 20))):
        found = sensitivity(own_s)
        assert (found.share, found.more_steps, found.suffices) == (np.inf, None, False)


def of_nodes(count: int, ranks: int) -> dict[str, list[int]]:
    return {f"c{node:02d}": [*range(node * ranks, (node + 1) * ranks)] for node in range(count)}


def own_seconds(seed: int, nodes: int, ranks: int, slower: float, lag_1: float = 0.3) -> np.ndarray:
    """Ranks whose means differ by 1 % (standard deviation) and whose steps differ by 5 %. The second half of
    the nodes is slower by this share."""
    rng = np.random.default_rng([seed, nodes, ranks])
    usual = 1 + 0.01 * rng.standard_normal(nodes * ranks)
    usual[nodes // 2 * ranks :] *= 1 + slower
    return np.stack([level * ar1(rng, STEPS, lag_1, 0.05) for level in usual])


def found_in(runs: int, nodes: int, ranks: int, slower: float, lag_1: float = 0.3) -> int:
    seconds = (own_seconds(seed, nodes, ranks, slower, lag_1) for seed in range(runs))
    slow = [*range(nodes // 2 * ranks, nodes * ranks)]
    found = [slow_half(own_s, of_nodes(nodes, ranks)) for own_s in seconds]
    return sum(each == slow for each in found) if slower else sum(map(bool, found))


@pytest.mark.parametrize("lag_1", [0.3, 0.8])
@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (2, 4), (4, 2), (4, 4)])
def test_equal_nodes_are_named_in_less_than_five_percent_of_the_runs(nodes, ranks, lag_1):
    assert found_in(100, nodes, ranks, 0.0, lag_1) <= 2


@pytest.mark.parametrize(
    ("nodes", "ranks", "slower", "least"),
    [(2, 2, 0.1, 20), (2, 4, 0.1, 38), (2, 8, 0.05, 36), (4, 2, 0.1, 36), (4, 4, 0.1, 36), (8, 4, 0.1, 32)],
)
def test_the_slow_half_is_found(nodes, ranks, slower, least):
    """The modified z-score alone finds it in a few of 40 runs, as each slow rank is its own reference."""
    assert found_in(40, nodes, ranks, slower) >= least


@pytest.mark.parametrize(("slower", "slow"), [(0.02, []), (0.04, [4, 5, 6, 7])])
def test_halves_differ_by_three_percent_or_more(slower, slow):
    own_s = 1 + delays(8, STEPS, slow=[4, 5, 6, 7], slow_s=slower)
    assert slow_half(own_s, of_nodes(2, 4)) == slow


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_slow_rank_is_no_slow_half(ranks):
    own_s = 1 + delays(2 * ranks, STEPS, slow=[2 * ranks - 1], slow_s=0.5, jitter_s=0.01)
    assert slow_half(own_s, of_nodes(2, ranks)) == []


def test_nodes_without_a_gap_between_the_halves_have_no_slow_half():
    """Each node is 5 % slower than the one before it: the halves differ, but not as halves."""
    own_s = np.repeat(1 + 0.05 * np.arange(4), 4)[:, None] + delays(16, STEPS, jitter_s=0.01)
    assert slow_half(own_s, of_nodes(4, 4)) == []


def test_an_odd_number_of_nodes_and_nodes_of_one_rank_have_no_halves():
    own_s = 1 + delays(6, STEPS, slow=[3, 4, 5], slow_s=0.1, jitter_s=0.001)
    assert slow_half(own_s, of_nodes(3, 2)) == slow_half(own_s, of_nodes(6, 1)) == slow_half(own_s, {}) == []
    assert slow_half(own_s, of_nodes(2, 3)) == [3, 4, 5]


def culprit_of(nodes: int, ranks: int) -> Culprit:
    added = 0.13 * (own_seconds(2, nodes, ranks, 0.1) - 1)
    seconds = seconds_of(generate(np.maximum(added, -0.9 * BASE_S), ranks_per_node=ranks))
    assert seconds is not None
    (culprit,) = diagnose(seconds).culprits
    assert culprit.excess_s.value == pytest.approx(0.013, rel=0.25)
    assert culprit.ranks == tuple(range(nodes * ranks // 2, nodes * ranks))
    return culprit


def test_one_of_two_nodes_is_named():
    assert culprit_of(2, 4).name == "node c01"


def test_half_of_four_nodes_is_named_against_the_other_half():
    culprit = culprit_of(4, 4)
    assert culprit.part == "c02, c03"
    assert (culprit.host, culprit.other_nodes) == ("", "c00, c01")
