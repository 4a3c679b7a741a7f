"""Half of the nodes that is slow: how often it is found, and how often equal nodes are named."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.report.straggler_text import describe
from analysis.stragglers.culprit import Culprit, diagnose
from analysis.stragglers.rank_steps import rank_steps
from analysis.stragglers.slow_half import slow_half
from tests.support.step_series import ar1
from tests.support.straggler_records import BASE_S, delays, generate

STEPS = 60


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
    seconds = rank_steps(generate(np.maximum(added, -0.9 * BASE_S), ranks_per_node=ranks))
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
    assert describe(culprit).startswith("c02, c03 are slower than c00, c01: compute takes ")
