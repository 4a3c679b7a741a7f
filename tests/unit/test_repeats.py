"""Repeats that a comparison needs, and two groups of repeats."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.stats.verdicts import compare, repeats_needed, spread_of, two_groups


def test_the_spread_is_pooled_over_groups_of_repeats() -> None:
    one, two = [1.0, np.exp(0.02)], [5.0, 5.0, 5.0]
    assert spread_of([one, two, [7.0]]) == pytest.approx(np.sqrt(2 * 0.01**2 / 3))
    assert spread_of([[7.0], []]) is None


@pytest.mark.parametrize(
    ("spread", "effect", "repeats"), [(0.01, 0.05, 3), (0.01, 0.02, 6), (0.02, 0.02, 18)]
)
def test_so_many_repeats_settle_four_of_five_differences(spread: float, effect: float, repeats: int) -> None:
    assert repeats_needed(spread, effect) == repeats
    rng = np.random.default_rng(1)
    sides = np.exp(rng.normal(0, spread, (500, 2, repeats)))
    found = [compare((1 + effect) * values, base).p_difference < 0.05 for values, base in sides]
    assert np.mean(found) >= 0.75


def test_the_least_is_two_and_too_many_are_none() -> None:
    assert (repeats_needed(0.0, 0.02), repeats_needed(0.1, 0.01)) == (2, None)


def test_two_groups_are_seen_and_seldom_among_equal_repeats() -> None:
    assert two_groups([52.1, 40.0, 40.1, 51.9]) == pytest.approx((40.05, 52.0))
    for values in ([40.0, 40.1, 52.0], [40.0, 40.1, 40.2, 52.0], [40.0, 40.01, 40.5, 40.51]):
        assert two_groups(values) is None
    rng = np.random.default_rng(2)
    assert np.mean([two_groups(each) is not None for each in np.exp(rng.normal(0, 0.05, (1000, 4)))]) <= 0.02
