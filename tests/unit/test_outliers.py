"""Figures of the rule for slow ranks on matrices whose results are known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t

from analysis.stragglers.late_share import late_share
from analysis.stragglers.outliers import find_outliers, slow_ranks, smallest_excess_s
from analysis.stragglers.persistence import split_loss, unbiased_loss
from tests.support.straggler_records import delays


def levels(*seconds: float, steps: int = 20) -> np.ndarray:
    """Ranks of which each has the same own seconds in all steps."""
    return np.repeat(np.array(seconds)[:, None], steps, axis=1)


@pytest.mark.parametrize(("slow_windows", "slow"), [((0, 2, 4, 6, 8, 9), [1]), ((0, 2, 4, 6, 8), [])])
def test_a_rank_is_slow_in_six_of_ten_windows_or_not_at_all(slow_windows, slow):
    own_s = 1 + delays(8, 100, jitter_s=0.005)
    for window in slow_windows:
        own_s[1, 10 * window : 10 * (window + 1)] += 0.3
    found = find_outliers(own_s)
    assert found.windows[1] == pytest.approx(len(slow_windows) / 10)
    assert np.flatnonzero(found.slow).tolist() == slow


@pytest.mark.parametrize(("excess", "slow"), [(0.028, []), (0.032, [1])])
def test_a_slow_rank_is_three_percent_above_the_median_of_the_others(excess, slow):
    assert slow_ranks(1 + delays(4, 60, slow=[1], slow_s=excess, jitter_s=0.0005)) == slow


def alternating(ranks: int, steps: int) -> np.ndarray:
    """Own seconds of 1.1 and 0.9 in turn, of every second rank the other way round. The deviation of two
    ranks is 0.2 or -0.2, so its correlation counts as 0."""
    signs = np.where(np.add.outer(np.arange(ranks), np.arange(steps)) % 2, -1.0, 1.0)
    return 1 + 0.1 * signs


def test_the_smallest_excess_of_many_steps_is_that_of_students_t():
    """100 steps with a correlation of at most 0.1 are worth 82 independent ones."""
    expected = t.isf(0.01 / 2, 81) * 0.2 / np.sqrt(81)
    assert smallest_excess_s(alternating(2, 100)) == pytest.approx(expected)


def test_the_smallest_excess_of_a_few_steps_is_that_of_the_jitter():
    """Of two ranks one is last in all of 6 steps with a probability of 1/32, of 5 steps with 1/16."""
    jitter_s = 12 * 0.4 / np.sqrt(2)
    assert smallest_excess_s(alternating(2, 6)) == pytest.approx(t.isf(0.01 / 2, 2) * 0.2 / np.sqrt(2))
    assert smallest_excess_s(alternating(2, 5)) == pytest.approx(jitter_s)
    assert smallest_excess_s(alternating(64, 3)) == pytest.approx(jitter_s)


def test_a_rank_that_is_last_in_few_independent_steps_is_not_late_more_often_than_by_chance():
    """100 steps of the wave are worth five: of two ranks, one is last in all of them by 1/32. The excess lies
    between the limit of Student's t and that of the jitter."""
    wave = 0.1 * np.sin(np.arange(100) * 2 * np.pi / 12)
    own_s = np.stack([np.ones(100), 1.64 + wave])
    found = find_outliers(own_s, {"a": [0], "b": [1]})
    assert found.late.share.tolist() == [0.0, 1.0]
    assert found.late.adjusted_p[1] == pytest.approx(2 / 32)
    assert not found.slow.any()
    assert find_outliers(own_s + np.array([[0.0], [1.0]])).slow.tolist() == [False, True]


def test_each_rank_has_the_limit_of_its_own_jitter():
    own_s = levels(1.0, 1.04, 1.0, 1.0, 1.0, steps=100)
    own_s[0] = np.where(np.arange(100) % 2, 0.7, 1.3)
    assert slow_ranks(own_s) == [1]


def test_three_steps_name_nobody():
    assert slow_ranks(levels(1.0, 1.0, 1.0, 2.0, steps=3)) == []


def test_the_late_share_is_tested_against_an_equal_share_by_the_binomial():
    """Rank 0 is last in 8 of 10 steps: at least 8 of 10 has the probability 56/1024, at least 4 of 5 6/32."""
    arrival_s = np.array([[2.0] * 8 + [0.0] * 2, [1.0] * 10])
    found = late_share(arrival_s)
    assert found.share.tolist() == [0.8, 0.2]
    assert found.adjusted_p == pytest.approx([2 * 56 / 1024, 1 - 11 / 1024])
    assert late_share(arrival_s, 5).adjusted_p == pytest.approx([2 * 6 / 32, 31 / 32])
    assert late_share(arrival_s, 50).adjusted_p == pytest.approx(found.adjusted_p)
    assert late_share(np.array([[2.0] * 7 + [0.0] * 3, [1.0] * 10]), 5).adjusted_p[0] == pytest.approx(
        12 / 32
    )


def test_steps_with_several_last_ranks_count_for_none_of_them():
    found = late_share(np.array([[2.0, 2.0, 1.0, 1.0], [2.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]]))
    assert found.share.tolist() == [0.5, 0.0, 0.0]


def test_half_sampling_has_the_same_result_in_each_report():
    own_s = 1 + delays(4, 30, jitter_s=0.05, slow=[1], slow_s=0.02)
    assert unbiased_loss(own_s) == unbiased_loss(own_s, seed=0) != unbiased_loss(own_s, seed=1)
    assert split_loss(own_s).persistent_s > unbiased_loss(own_s).persistent_s > 0
