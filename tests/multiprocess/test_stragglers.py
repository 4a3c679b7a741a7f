"""Runs of emulated accelerators with one slow rank, or one that is slow for a while: the records name it
first, with its size. The machine may delay other ranks too."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.read.load import load_runs
from analysis.results.culprits import Culprit, diagnose
from analysis.results.rank_steps import rank_steps
from disttrain.comm_bench.links import measure_rates
from tests.support import injected_delays as delays
from tests.support.ranks import Ranks

pytestmark = pytest.mark.multiprocess

RANKS, LATE_RANK, LATE_S = 4, 2, 0.02
QUICK = {"forward_s": 0.01, "backward_s": 0.02, "optimizer_s": 0.001}


def costliest(ranks: Ranks, folder: Path, steps: int, **model: object) -> Culprit:
    sections = {"model": {**QUICK, **model}, "train": {"steps": delays.WARM_UP + steps}}
    ranks.call(delays.train_rank, delays.config(RANKS, **sections), folder / "sweep" / "run")
    found = rank_steps(load_runs([folder / "sweep"])[0].steps)
    assert found is not None
    return diagnose(found).culprits[0]


def test_one_slow_rank_is_named_with_its_size(four_ranks, tmp_path):
    slow = {"slow_ranks": [LATE_RANK], "slow_s": LATE_S}
    culprit = costliest(four_ranks, tmp_path, 30, jitter_s=0.002, **slow)
    assert (culprit.ranks, culprit.phase) == ((LATE_RANK,), "compute_s")
    assert culprit.persistent
    delays.assert_about(culprit.excess_s.value, LATE_S, "excess")
    delays.assert_about(culprit.cost_s, LATE_S, "cost")


def test_a_rank_that_is_slow_for_a_while_is_named_with_its_steps(four_ranks, tmp_path):
    slow = {"slow_ranks": [LATE_RANK], "slow_s": LATE_S, "slow_steps": [24, 38]}
    culprit = costliest(four_ranks, tmp_path, 57, jitter_s=0.002, **slow)
    assert (culprit.ranks, culprit.persistent) == ((LATE_RANK,), False)
    assert abs(culprit.first_step - 24) <= 2
    assert abs(culprit.last_step - 38) <= 2
    delays.assert_about(culprit.excess_s.value, LATE_S, "excess")


def test_neighbouring_nodes_are_measured_in_both_directions(four_ranks):
    rates = [rate for each in four_ranks.call(measure_rates, 1 << 16) for rate in each]
    expected = {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert {(rate.source, rate.target) for rate in rates} == expected | {(b, a) for a, b in expected}
    assert len(rates) == 8
    assert all(rate.bytes_per_s > 0 for rate in rates)
