"""How often equal ranks are named, how often a slow one is missed: rates over many generated runs."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.results.slow_ranks import find_episodes, sensitivity, slow_ranks
from analysis.stats.estimates import mean_interval
from tests.support.step_series import ar1
from tests.support.straggler_records import delays


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_jitter_on_all_ranks_makes_none_an_outlier(ranks):
    named = 0
    for seed in range(20):
        own_s = 0.12 + delays(ranks, 60, jitter_s=0.015, seed=seed)
        named += bool(slow_ranks(own_s)) + bool(find_episodes(own_s))
    assert named <= 2


def correlated_jitter(seed, ranks, steps, lag_1=0.8, cv=0.3):
    """Own seconds of equal ranks: independent AR(1) noise around 0.12 s."""
    rng = np.random.default_rng(seed)
    return np.stack([0.12 * np.maximum(ar1(rng, steps, lag_1, cv), 0.1) for _ in range(ranks)])


@pytest.mark.parametrize(("ranks", "steps"), [(2, 200), (8, 100)])
def test_correlated_jitter_on_all_ranks_names_nobody(ranks, steps):
    """Without the effective number of independent steps, one of these runs in eight names a rank."""
    seconds = (correlated_jitter(seed, ranks, steps) for seed in range(60))
    named = sum(bool(slow_ranks(own_s)) or bool(find_episodes(own_s)) for own_s in seconds)
    assert named <= 3


@pytest.mark.parametrize(("ranks", "steps", "lag_1"), [(2, 60, 0.99), (4, 20, 0.95), (8, 60, 0.99)])
def test_jitter_that_lasts_as_long_as_the_run_names_nobody(ranks, steps, lag_1):
    seconds = (correlated_jitter(seed, ranks, steps, lag_1) for seed in range(60))
    assert sum(bool(slow_ranks(own_s)) for own_s in seconds) <= 3


@pytest.mark.parametrize(("ranks", "steps", "lag_1"), [(2, 12, 0.8), (2, 12, 0.95), (2, 20, 0.95)])
def test_jitter_in_a_few_steps_names_nobody_in_95_percent_of_the_runs(ranks, steps, lag_1):
    """Student's t on the estimated correlation alone names a rank in 6 to 8 % of the runs of 2 ranks."""
    seconds = (correlated_jitter(seed, ranks, steps, lag_1) for seed in range(400))
    assert sum(bool(slow_ranks(own_s)) for own_s in seconds) <= 20


@pytest.mark.parametrize("steps", [12, 20])
def test_a_slow_rank_of_two_is_named_in_a_few_steps(steps):
    """Its excess is ten standard deviations of the jitter."""
    found = 0
    for seed in range(40):
        own_s = 1 + delays(2, steps, slow=[1], slow_s=0.1, jitter_s=0.01, seed=seed)
        found += slow_ranks(own_s) == [1]
    assert found >= 30


@pytest.mark.parametrize(
    ("ranks", "steps", "lag_1"),
    [(2, 40, 0.8), (4, 20, 0.8), (4, 100, 0.95), (8, 200, 0.99)],
)
def test_a_rank_that_is_twice_as_slow_is_found_however_correlated_its_jitter_is(ranks, steps, lag_1):
    """A few independent steps pass neither the t test nor the test of the last rank."""
    found = 0
    for seed in range(20):
        own_s = correlated_jitter(seed, ranks, steps, lag_1, cv=0.01)
        own_s[1] *= 2
        found += slow_ranks(own_s) == [1]
    assert found >= 19


@pytest.mark.parametrize(
    ("ranks", "steps", "lag_1", "cv"),
    [(2, 12, 0.3, 0.05), (2, 60, 0.0, 0.05), (4, 20, 0.8, 0.05), (8, 60, 0.3, 0.1), (64, 100, 0.3, 0.2)],
)
def test_the_excess_of_the_sensitivity_is_found_in_80_percent_and_half_of_it_seldom(ranks, steps, lag_1, cv):
    found = {0.5: 0, 1.0: 0, 1.5: 0}
    for factor in found:
        for seed in range(40):
            own_s = correlated_jitter(seed, ranks, steps, lag_1, cv)
            own_s[1] += factor * sensitivity(own_s).excess_s
            found[factor] += slow_ranks(own_s) == [1]
    assert found[0.5] <= 12
    assert found[1.0] >= 24
    assert found[1.5] >= 32


@pytest.mark.parametrize(("ranks", "cv"), [(2, 0.3), (8, 0.3), (64, 0.2)])
def test_so_many_more_steps_find_a_rank_that_is_slower_by_a_tenth(ranks, cv):
    short = [sensitivity(correlated_jitter(seed, ranks, 40, 0.3, cv)) for seed in range(20)]
    assert not any(each.suffices for each in short)
    more_steps = int(np.median([each.more_steps for each in short]))
    found = 0
    for seed in range(20):
        own_s = correlated_jitter(seed, ranks, 40 + more_steps, 0.3, cv)
        own_s[1] *= 1.1
        found += slow_ranks(own_s) == [1]
    assert found >= 13


def test_a_slow_rank_and_an_episode_are_found_in_correlated_jitter():
    throughout, for_a_while = (correlated_jitter(1, 8, 200, lag_1=0.5, cv=0.05) for _ in range(2))
    throughout[3] += 0.03
    for_a_while[3, 60:120] += 0.05
    assert slow_ranks(throughout) == [3]
    assert [*find_episodes(for_a_while)] == [3]


def test_an_interval_of_correlated_steps_covers():
    covered = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        series = np.zeros(200)
        for step in range(1, 200):
            series[step] = 0.5 * series[step - 1] + random.standard_normal()
        mean = mean_interval(series)
        assert mean.low is not None
        assert mean.high is not None
        covered += mean.low < 0 < mean.high
    assert covered > 175
    assert mean_interval(np.ones(3)).low is None
