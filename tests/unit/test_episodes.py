"""Ranges of steps in which a rank is slow, on matrices whose ranges are known."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.results.slow_ranks import find_episodes
from tests.support.straggler_records import delays


def own(steps: int, *slow: tuple[int, int, int, float]) -> np.ndarray:
    """Own seconds around 1, with (rank, first, last, seconds) more in these columns."""
    own_s = 1 + delays(8, steps, jitter_s=0.001)
    for rank, first, last, more_s in slow:
        own_s[rank, first : last + 1] += more_s
    return own_s


@pytest.mark.parametrize(("first", "last"), [(0, 29), (80, 119), (170, 199)])
def test_the_steps_of_an_episode(first, last):
    own_s = own(200, (6, first, last, 0.5))
    assert find_episodes(own_s) == {6: slice(first, last + 1)}


def test_an_episode_ends_half_way_between_the_two_levels():
    own_s = own(200, (1, 80, 119, 0.5), (1, 79, 79, 0.2), (1, 120, 120, 0.3))
    assert find_episodes(own_s) == {1: slice(80, 121)}


@pytest.mark.parametrize(
    ("last_s", "expected"),
    [
        ([11.0] * 2, {}),  # 38 steps are below half of the mean, and two are no episode
        ([4.6] * 5, {1: slice(115, 120)}),
    ],
)
def test_a_few_much_slower_steps_end_an_episode(last_s, expected):
    first_slow = 120 - len(last_s)
    own_s = own(200, (1, 80, first_slow - 1, 0.5))
    own_s[1, first_slow:120] += last_s
    assert find_episodes(own_s) == expected


@pytest.mark.parametrize(("steps", "count"), [(19, 0), (24, 1)])
def test_a_run_of_less_than_twenty_steps_is_not_searched(steps, count):
    assert len(find_episodes(own(steps, (1, 5, 16, 0.5)))) == count


@pytest.mark.parametrize(("more_s", "count"), [(0.028, 0), (0.034, 1)])
def test_an_episode_is_three_percent_above_the_median(more_s, count):
    assert len(find_episodes(own(200, (1, 90, 129, more_s)))) == count


def test_the_steps_of_an_episode_of_a_long_run():
    assert find_episodes(own(1000, (3, 400, 599, 0.2))) == {3: slice(400, 600)}


@pytest.mark.parametrize("ends", [(80, 150), (60, 150)])
def test_two_ranks_that_are_slow_for_different_times_are_two_episodes(ends):
    own_s = 0.1 + delays(8, 200, jitter_s=0.0005)
    for rank, end in zip((2, 3), ends, strict=True):
        own_s[rank, 50:end] += 0.02
    assert find_episodes(own_s) == {rank: slice(50, end) for rank, end in zip((2, 3), ends, strict=True)}


@pytest.mark.filterwarnings("error")
def test_a_fast_rank_that_is_less_fast_for_a_while_has_no_episode():
    assert find_episodes(own(200, (6, 0, 199, -0.5), (6, 50, 99, 0.3))) == {}


def test_drifting_jitter_of_equal_ranks_is_seldom_an_episode_and_an_episode_in_it_is_found():
    rng, false, found = np.random.default_rng(4), 0, 0
    for _ in range(50):
        own_s = 1 + 0.05 * (rng.normal(0, 1, (8, 200)) + rng.normal(0, 0.1, (8, 200)).cumsum(axis=1))
        false += bool(find_episodes(own_s))
        own_s[3, 50:110] += 0.25
        found += 3 in find_episodes(own_s)
    assert (false <= 5, found >= 45) == (True, True)
