"""Ranges of steps in which a rank is slow, on matrices whose ranges are known."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.stragglers import episodes
from analysis.stragglers.episodes import find_episodes
from analysis.stragglers.intervals import mean_interval
from tests.support.straggler_records import delays


def own(steps: int, *slow: tuple[int, int, int, float]) -> np.ndarray:
    """Own seconds around 1, with (rank, first, last, seconds) more in these columns."""
    own_s = 1 + delays(8, steps, jitter_s=0.001)
    for rank, first, last, more_s in slow:
        own_s[rank, first : last + 1] += more_s
    return own_s


@pytest.mark.parametrize(("first", "last"), [(0, 29), (80, 119), (170, 199)])
def test_the_steps_and_the_excess_of_an_episode(first, last):
    own_s = own(200, (6, first, last, 0.5))
    (found,) = find_episodes(own_s)
    assert (found.rank, found.first, found.last) == (6, first, last)
    others_s = np.median(np.delete(own_s, 6, axis=0), axis=0)
    assert found.excess_s == pytest.approx(mean_interval((own_s[6] - others_s)[first : last + 1]))


def test_an_episode_ends_half_way_between_the_two_levels():
    (found,) = find_episodes(own(200, (1, 80, 119, 0.5), (1, 79, 79, 0.2), (1, 120, 120, 0.3)))
    assert (found.first, found.last) == (80, 120)


@pytest.mark.parametrize(
    ("last_s", "expected"),
    [
        ([11.0] * 2, []),  # 38 steps are below half of the mean, and two are no episode
        ([4.6] * 5, [(115, 119)]),
    ],
)
def test_a_few_much_slower_steps_end_an_episode(last_s, expected):
    first_slow = 120 - len(last_s)
    own_s = own(200, (1, 80, first_slow - 1, 0.5))
    own_s[1, first_slow:120] += last_s
    assert [(each.first, each.last) for each in find_episodes(own_s)] == expected


@pytest.mark.parametrize(("more_s", "ranks"), [(0.3, [2, 1]), (0.306, [1, 2])])
def test_episodes_are_listed_by_their_sums(more_s, ranks):
    """20 steps of `more_s` beside 60 steps of 0.101 s."""
    found = find_episodes(own(200, (1, 150, 169, more_s), (2, 10, 69, 0.101)))
    assert [each.rank for each in found] == ranks


@pytest.mark.parametrize(("steps", "searched"), [(19, False), (20, True)])
def test_a_run_of_less_than_twenty_steps_is_not_searched(monkeypatch, steps, searched):
    calls = []
    monkeypatch.setattr(episodes, "_beyond_chance", lambda values, seed: calls.append(values.shape) or [])
    assert find_episodes(own(steps, (1, 5, 12, 0.5))) == []
    assert calls == ([(8, steps)] if searched else [])


@pytest.mark.parametrize(
    ("values", "segment"),
    [
        ([1, -5, 2, 3, -1], (2, 3)),
        ([1, -9, 5], (2, 2)),
        ([5, -9], (0, 0)),
        ([-1, -2], (0, -1)),
    ],
)
def test_the_segment_with_the_largest_sum(values, segment):
    assert episodes._segment(np.array(values, float)) == segment
    inside = values[segment[0] : segment[1] + 1]
    assert episodes._largest_sums(np.array([values], float)).tolist() == [sum(inside)]


def test_the_level_of_a_segment_is_not_correlation():
    values = np.array([[-1.5, -1.5, 1.5, 1.5, 1.5, -1.5], [1.0, -1.0, 1.0, -3.0, 1.0, 1.0]])
    rest = episodes._without_segments(values)
    assert rest[0].tolist() == [0.0] * 6
    assert rest[1].tolist() == [1.5, -0.5, 1.5, -2.5, 0.0, 0.0]


@pytest.mark.parametrize(("more_s", "count"), [(0.028, 0), (0.034, 1)])
def test_an_episode_is_three_percent_above_the_median(more_s, count):
    assert len(find_episodes(own(200, (1, 90, 129, more_s)))) == count


def test_steps_of_a_long_run_are_averaged_in_groups():
    """Of 1000 steps, five are one group."""
    (found,) = find_episodes(own(1000, (3, 400, 599, 0.2)))
    assert (found.rank, found.first, found.last) == (3, 400, 599)


@pytest.mark.parametrize(
    ("ranks", "steps", "lag_1", "blocks", "times"),
    [
        (8, 200, 0.0, 34, 400),  # blocks of the cube root of the steps
        (8, 200, 0.8, 7, 400),  # 3 (1 + r) / (1 - r) steps
        (8, 200, 0.98, 4, 400),
        (8, 20, 0.0, 6, 400),
        (100, 200, 0.0, 34, 200),  # four million elements
        (2000, 200, 0.0, 34, 50),
    ],
)
def test_blocks_are_longer_than_the_correlation_and_few_blocks_count_as_many_steps(
    monkeypatch, ranks, steps, lag_1, blocks, times
):
    calls, sums = [], []

    def recorded(_, parts, count, __):
        calls.append((len(parts), count))
        assert np.concatenate(parts).tolist() == list(range(steps))
        return sums.pop(0)

    monkeypatch.setattr(episodes, "_permuted_sums", recorded)
    for in_blocks, in_steps, limit in ((9.95, 1.0, 9.95), (0.0, 1.0, np.sqrt((1 + lag_1) / (1 - lag_1)))):
        calls, sums = [], [in_blocks, in_steps]
        found = episodes._limit(np.zeros((ranks, steps)), lag_1, np.random.default_rng(0))
        assert calls == [(blocks, times), (steps, times)]
        assert found == pytest.approx(limit)
