"""Ranks and halves of the nodes that are slow, throughout or for a while: on matrices whose results are known
by hand, and as rates over many generated runs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given

from analysis.results.slow_ranks import (
    correlation,
    find_episodes,
    last_shares,
    median_of_others,
    sensitivity,
    slow_half,
    slow_ranks,
)
from tests.support.step_series import ar1
from tests.support.straggler_records import MATRICES, delays

STEPS = 60


def levels(*seconds: float, steps: int = 20) -> np.ndarray:
    """Ranks of which each has the same own seconds in all steps."""
    return np.repeat(np.array(seconds)[:, None], steps, axis=1)


def correlated(seed: int, ranks: int, steps: int, lag_1: float = 0.8, cv: float = 0.3) -> np.ndarray:
    """Own seconds of equal ranks: independent AR(1) noise around 0.12 s."""
    rng = np.random.default_rng(seed)
    return np.stack([0.12 * np.maximum(ar1(rng, steps, lag_1, cv), 0.1) for _ in range(ranks)])


def alternating(own_s: np.ndarray) -> np.ndarray:
    """Rank 0 jitters by 0.3 s."""
    own_s[0] = np.where(np.arange(own_s.shape[1]) % 2, 0.7, 1.3)
    return own_s


def in_windows(*windows: int) -> np.ndarray:
    """Eight ranks, of which rank 1 is slow in these tenths of the steps."""
    own_s = 1 + delays(8, 100, jitter_s=0.005)
    for window in windows:
        own_s[1, 10 * window : 10 * (window + 1)] += 0.3
    return own_s


def wave(excess_s: float) -> np.ndarray:
    """100 steps that are worth three: the limit of Student's t is 7 standard deviations of 0.07 s."""
    return np.stack([np.ones(100), 1 + excess_s + 0.1 * np.sin(np.arange(100) * 2 * np.pi / 12)])


@pytest.mark.parametrize(
    ("own_s", "slow"),
    [
        (in_windows(0, 2, 4, 6, 8, 9), [1]),
        (in_windows(0, 2, 4, 6, 8), []),
        (1 + delays(4, 60, slow=[1], slow_s=0.032, jitter_s=0.0005), [1]),
        (1 + delays(4, 60, slow=[1], slow_s=0.028, jitter_s=0.0005), []),
        (wave(0.6), [1]),
        (wave(0.4), []),
        (
            alternating(levels(1.0, 1.04, 1.0, 1.0, 1.0, steps=100)),
            [1],
        ),  # each has the limit of its own jitter
        (levels(1.0, 1.0, 1.0, 2.0, steps=3), []),
        (levels(1, 1, 2, 3), [2, 3]),
        (levels(1, 2, 8, 40), []),  # at least half of the ranks are the reference
        (levels(5, 1), [0]),
        (0.12 + delays(8, 20, slow=[4, 5, 6, 7], slow_s=0.03, jitter_s=0.005), [4, 5, 6, 7]),
    ],
)
def test_a_rank_is_slow_in_most_windows_by_three_percent_and_beyond_chance(own_s, slow):
    assert slow_ranks(own_s) == slow


def own(steps: int, *slow: tuple[int, int, int, float], ranks: int = 8) -> np.ndarray:
    """Own seconds around 1, with (rank, first, last, seconds) more in these columns."""
    own_s = 1 + delays(ranks, steps, jitter_s=0.001)
    for rank, first, last, more_s in slow:
        own_s[rank, first : last + 1] += more_s
    return own_s


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("own_s", "episodes"),
    [
        (own(200, (6, 0, 29, 0.5)), {6: slice(0, 30)}),
        (own(200, (6, 170, 199, 0.5)), {6: slice(170, 200)}),
        (own(200, (0, 80, 119, 0.5), ranks=2), {0: slice(80, 120)}),
        (own(1000, (3, 400, 599, 0.2)), {3: slice(400, 600)}),
        # it ends half-way between the two levels
        (own(200, (1, 80, 119, 0.5), (1, 79, 79, 0.2), (1, 120, 120, 0.3)), {1: slice(80, 121)}),
        # of steps that are much slower, two are no episode, and the others are below half of the mean
        (own(200, (1, 80, 117, 0.5), (1, 118, 119, 11.0)), {}),
        (own(200, (1, 80, 114, 0.5), (1, 115, 119, 4.6)), {1: slice(115, 120)}),
        (own(19, (1, 5, 16, 0.5)), {}),
        (own(24, (1, 5, 16, 0.5)), {1: slice(5, 17)}),
        (own(200, (1, 90, 129, 0.028)), {}),
        (own(200, (1, 90, 129, 0.034)), {1: slice(90, 130)}),
        (own(200, (2, 50, 149, 0.2), (3, 50, 79, 0.2)), {2: slice(50, 150), 3: slice(50, 80)}),
        (own(200, (6, 0, 199, -0.5), (6, 50, 99, 0.3)), {}),  # a fast rank that is less fast for a while
    ],
)
def test_an_episode_has_its_steps(own_s, episodes):
    assert find_episodes(own_s) == episodes


@given(MATRICES)
def test_the_median_of_the_others_leaves_out_the_rank_itself(values):
    expected = [np.median(np.delete(values, rank, axis=0), axis=0) for rank in range(len(values))]
    assert median_of_others(values) == pytest.approx(np.array(expected))
    assert last_shares(values).sum() == pytest.approx(1), "ranks that tie share their step"


def test_the_correlation_is_the_median_over_ranks_without_the_bias_of_few_steps():
    random = np.random.default_rng(6)
    for lag_1 in (0.0, 0.5, 0.9):
        rows = np.stack([ar1(random, 100, lag_1, 0.1) for _ in range(101)])
        assert correlation(rows) == pytest.approx(lag_1, abs=0.03)
    assert correlation(np.tile([1.0, -1.0], (3, 10))) == 0.0
    assert correlation(np.zeros((2, 4))) == pytest.approx((1 / 4) / (1 - 0.5))
    assert correlation(np.linspace(0, 1, 200)[None, :]) == 0.98


@pytest.mark.parametrize(
    ("own_s", "share", "more_steps"),
    [
        (levels(2.0, 2.0, 2.0, 2.0), 0.03, 0),
        (levels(1.0, 2.0, 3.0, 4.0, 5.0), 3.5 * 1.4826 / 3, None),  # ranks that differ by themselves
        (np.ones((2, 3)), np.inf, None),
        (np.zeros((2, 20)), np.inf, None),
    ],
)
def test_the_sensitivity_is_that_of_the_strictest_rule(own_s, share, more_steps):
    found = sensitivity(own_s)
    assert (found.share, found.more_steps) == (pytest.approx(share), more_steps)
    assert found.suffices == (share <= 0.1)
    assert found.own_s == np.median(own_s)


def of_nodes(count: int, ranks: int) -> dict[str, list[int]]:
    return {f"c{node:02d}": [*range(node * ranks, (node + 1) * ranks)] for node in range(count)}


def halves(seed: int, nodes: int, ranks: int, slower: float, lag_1: float = 0.3) -> np.ndarray:
    """Ranks whose means differ by 1 % and whose steps differ by 5 %, the second half of the nodes slower."""
    rng = np.random.default_rng([seed, nodes, ranks])
    usual = 1 + 0.01 * rng.standard_normal(nodes * ranks)
    usual[nodes // 2 * ranks :] *= 1 + slower
    return np.stack([level * ar1(rng, STEPS, lag_1, 0.05) for level in usual])


@pytest.mark.parametrize(("nodes", "ranks", "lag_1"), [(2, 2, 0.3), (2, 4, 0.8), (4, 2, 0.8), (4, 4, 0.3)])
def test_equal_halves_are_seldom_named_and_a_slow_half_is_found(nodes, ranks, lag_1):
    """The modified z-score alone finds it in a few of 40 runs, as each slow rank is its own reference."""
    equal = [slow_half(halves(seed, nodes, ranks, 0.0, lag_1), of_nodes(nodes, ranks)) for seed in range(80)]
    assert sum(map(bool, equal)) <= 2
    slow = [slow_half(halves(seed, nodes, ranks, 0.1), of_nodes(nodes, ranks)) for seed in range(40)]
    assert slow.count([*range(nodes // 2 * ranks, nodes * ranks)]) >= (20 if ranks * nodes == 4 else 34)


@pytest.mark.parametrize(
    ("added_s", "nodes", "slow"),
    [
        (delays(8, STEPS, slow=[4, 5, 6, 7], slow_s=0.04), (2, 4), [4, 5, 6, 7]),
        (delays(8, STEPS, slow=[4, 5, 6, 7], slow_s=0.02), (2, 4), []),
        (delays(8, STEPS, slow=[7], slow_s=0.5, jitter_s=0.01), (2, 4), []),  # one slow rank
        (delays(6, STEPS, slow=[3, 4, 5], slow_s=0.1, jitter_s=0.001), (2, 3), [3, 4, 5]),
        (delays(6, STEPS, slow=[3, 4, 5], slow_s=0.1, jitter_s=0.001), (3, 2), []),
        (delays(6, STEPS, slow=[3, 4, 5], slow_s=0.1, jitter_s=0.001), (6, 1), []),
        (delays(6, STEPS, slow=[3, 4, 5], slow_s=0.1, jitter_s=0.001), (0, 1), []),
        # each node is slower than the one before it: the halves differ, but not as halves
        (np.repeat(0.05 * np.arange(4), 4)[:, None] + delays(16, STEPS, jitter_s=0.01), (4, 4), []),
    ],
)
def test_halves_differ_by_three_percent_with_a_gap_between_them(added_s, nodes, slow):
    assert slow_half(1 + added_s, of_nodes(*nodes)) == slow


@pytest.mark.parametrize(
    ("ranks", "steps", "lag_1", "cv", "runs"),
    [
        (3, 60, 0.0, 0.12, 20),
        (64, 60, 0.0, 0.12, 20),
        (8, 100, 0.8, 0.3, 60),  # one run in eight without the effective number of independent steps
        (4, 20, 0.95, 0.3, 60),
        (8, 60, 0.99, 0.3, 60),
        (2, 12, 0.8, 0.3, 400),  # 6 to 8 % by Student's t on the estimated correlation alone
        (2, 20, 0.95, 0.3, 400),
    ],
)
def test_jitter_on_all_ranks_seldom_names_one(ranks, steps, lag_1, cv, runs):
    seconds = [correlated(seed, ranks, steps, lag_1, cv) for seed in range(runs)]
    assert sum(bool(slow_ranks(own_s)) for own_s in seconds) <= 0.05 * runs
    if lag_1 <= 0.8:
        assert sum(bool(find_episodes(own_s)) for own_s in seconds) <= 0.1 * runs


@pytest.mark.parametrize(("ranks", "steps", "lag_1"), [(2, 40, 0.8), (4, 20, 0.8), (8, 200, 0.99)])
def test_a_rank_that_is_twice_as_slow_is_found_however_correlated_its_jitter_is(ranks, steps, lag_1):
    twice = np.ones((ranks, 1))
    twice[1] = 2
    seconds = [twice * correlated(seed, ranks, steps, lag_1, 0.01) for seed in range(20)]
    assert [slow_ranks(own_s) for own_s in seconds].count([1]) >= 19


def test_drifting_jitter_of_equal_ranks_is_seldom_an_episode_and_an_episode_in_it_is_found():
    rng, false, found = np.random.default_rng(4), 0, 0
    for _ in range(50):
        own_s = 1 + 0.05 * (rng.normal(0, 1, (8, 200)) + rng.normal(0, 0.1, (8, 200)).cumsum(axis=1))
        false += bool(find_episodes(own_s))
        own_s[3, 50:110] += 0.25
        found += 3 in find_episodes(own_s)
    assert (false <= 5, found >= 45) == (True, True)


@pytest.mark.parametrize(
    ("ranks", "steps", "lag_1", "cv"),
    [(2, 12, 0.3, 0.05), (4, 20, 0.8, 0.05), (8, 60, 0.3, 0.1), (64, 100, 0.3, 0.2)],
)
def test_the_excess_of_the_sensitivity_is_found_in_80_percent_and_half_of_it_seldom(ranks, steps, lag_1, cv):
    counts = dict.fromkeys((0.5, 1.0, 1.5), 0)
    for factor, seed in product(counts, range(40)):
        own_s = correlated(seed, ranks, steps, lag_1, cv)
        own_s[1] += factor * sensitivity(own_s).excess_s
        counts[factor] += slow_ranks(own_s) == [1]
    assert counts[0.5] <= 12 < 24 <= counts[1.0]
    assert counts[1.5] >= 32


def test_so_many_more_steps_find_a_rank_that_is_slower_by_a_tenth():
    short = [correlated(seed, 2, 40, 0.3) for seed in range(20)]
    more = [sensitivity(own_s).more_steps or 0 for own_s in short]
    assert min(more) > 0
    assert sensitivity(short[0], steps_per_column=10).more_steps == 10 * more[0]
    long = [correlated(seed, 2, 40 + int(np.median(more)), 0.3) * [[1.0], [1.1]] for seed in range(20)]
    assert [slow_ranks(own_s) for own_s in long].count([1]) >= 13
