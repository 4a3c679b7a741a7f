"""Causes of lost compute: each is found from its evidence, and none is made up."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.losses.compute_loss import ComputeState, explain, sentence

BASE = ComputeState(1.0, 1, 8, hosts=1, processors=2, on_cpu=True)


def names(point: ComputeState, base: ComputeState = BASE, work: float = 1.0) -> list[tuple[str, ...]]:
    return [cause.names for cause in explain(point, base, work)]


def test_ranks_that_share_processors_are_the_cause_on_one_machine() -> None:
    point = ComputeState(1.6, 4, 8, hosts=1, processors=2, on_cpu=True, oversubscribed=True)
    assert names(point) == [("shared_processors",)]
    text = sentence(explain(point, BASE, 1.0))
    assert text == (
        "Compute takes longer: shared processors and memory, as a rank has 0.500 processors instead of 2.00."
    )


def test_processors_are_no_cause_where_each_rank_has_as_many() -> None:
    assert names(ComputeState(1.6, 2, 8, hosts=2, processors=2, on_cpu=True, threads=4)) == [("unknown",)]
    gpu = ComputeState(1.0, 1, 8, hosts=1, processors=16)
    assert names(ComputeState(1.6, 8, 8, hosts=1, processors=16), gpu) == [("unknown",)]


def test_processors_are_no_cause_where_all_threads_have_their_own() -> None:
    found = ComputeState(1.6, 2, 8, hosts=1, processors=2, on_cpu=True)
    assert names(found) == [("unknown",)]
    assert names(replace(found, threads=2)) == [("shared_processors",)]


def test_a_named_straggler_of_two_is_the_first_cause() -> None:
    ranks = np.array([1.0, 1.8])
    point = ComputeState(1.4, 2, 8, rank_compute_s=ranks, stragglers={1: "rank 1 on c01"})
    (cause,) = explain(point, ComputeState(1.0, 1, 8), 1.0)
    assert cause.names == ("slow_ranks",)
    assert cause.text == "rank 1 on c01 computes 80 % longer than the median of the other ranks"


def test_oversubscription_is_the_cause_where_hosts_are_not_known() -> None:
    base = ComputeState(1.0, 1, 8)
    (cause,) = explain(ComputeState(1.6, 4, 8, oversubscribed=True), base, 1.0)
    assert cause.names == ("shared_processors",)
    assert cause.text == ("shared processors, as ranks or threads outnumber the processors or GPUs of a host")
    both = replace(base, oversubscribed=True)
    assert names(ComputeState(1.6, 1, 8, oversubscribed=True), both) == [("unknown",)]
    assert names(ComputeState(1.6, 4, 8, oversubscribed=True), both) == [("shared_processors",)]
    known = ComputeState(1.6, 4, 8, hosts=1, processors=2, on_cpu=True)
    assert names(known, base) == [("unknown",)], "hosts of the base are not known"


def test_a_smaller_local_batch_is_a_candidate_in_strong_scaling() -> None:
    point = ComputeState(0.4, 4, 2, hosts=4, processors=2, on_cpu=True)
    assert names(point, work=0.25) == [("smaller_batch",)]
    shared = ComputeState(0.4, 4, 2, hosts=1, processors=2, on_cpu=True)
    (cause,) = explain(shared, BASE, 0.25)
    assert cause.names == ("shared_processors", "smaller_batch")
    assert cause.text == (
        "shared processors and memory, as a rank has 0.500 processors instead of 2.00 "
        "or smaller kernels, as a pass has 2 samples instead of 8"
    )


def test_one_slow_rank_of_eight_is_named_with_its_size() -> None:
    ranks = np.array([1.0, 1.0, 1.0, 1.8, 1.0, 1.0, 1.0, 1.0])
    (cause,) = explain(ComputeState(ranks.mean(), 8, 8, rank_compute_s=ranks), ComputeState(1.0, 1, 8), 1.0)
    assert cause.names == ("slow_ranks",)
    assert cause.seconds == pytest.approx(0.1)
    assert "rank 3 computes 80 % longer" in cause.text


def test_the_slow_one_of_three_ranks_is_found_and_no_rank_without_compute() -> None:
    base = ComputeState(1.0, 1, 8)
    three = ComputeState(1.2, 3, 8, rank_compute_s=np.array([1.0, 1.0, 1.6]))
    assert names(three, base) == [("slow_ranks",)]
    idle = ComputeState(1.2, 3, 8, rank_compute_s=np.array([0.0, 0.0, 3.6]))
    assert names(idle, base) == [("unknown",)]


def test_ranks_as_uneven_as_those_of_the_base_are_not_blamed() -> None:
    ranks = np.array([1.0, 1.0, 1.0, 1.8])
    base = ComputeState(ranks.mean(), 4, 8, rank_compute_s=ranks)
    assert names(ComputeState(2 * ranks.mean(), 4, 8, rank_compute_s=2 * ranks), base) == [("unknown",)]


def test_causes_are_in_the_order_of_their_seconds_and_named_ranks_come_first() -> None:
    ranks = np.array([1.0, 1.0, 1.0, 1.8])
    point, base = ComputeState(ranks.mean(), 4, 8, rank_compute_s=ranks), ComputeState(0.5, 1, 8)
    assert names(point, base) == [("unknown",), ("slow_ranks",)]
    assert names(replace(point, stragglers={3: "rank 3"}), base) == [("slow_ranks",), ("unknown",)]


def test_the_slowest_of_several_named_stragglers_has_its_size_and_the_others_their_names() -> None:
    ranks = np.array([1.0, 1.5, 2.0, 1.0, 1.2])
    point = ComputeState(ranks.mean(), 5, 8, rank_compute_s=ranks, stragglers={1: "rank 1", 2: "rank 2"})
    first, *_ = explain(point, ComputeState(1.0, 1, 8), 1.0)
    assert first.text == "rank 2 computes 100 % longer than the median of the other ranks (and rank 1)"
    three = replace(point, stragglers={1: "rank 1", 2: "rank 2", 4: "rank 4"})
    first, *_ = explain(three, ComputeState(1.0, 1, 8), 1.0)
    assert first.text.endswith("(and rank 1, rank 4)")


def test_lower_clocks_are_named_with_their_size_and_the_rest_is_unknown() -> None:
    point, base = ComputeState(1.5, 2, 8, clock=0.66), ComputeState(1.0, 1, 8, clock=0.9)
    found = explain(point, base, 1.0)
    assert [cause.names for cause in found] == [("lower_clocks",), ("unknown",)]
    assert found[0].seconds == pytest.approx(0.5 * math.log(0.9 / 0.66) / math.log(1.5))
    assert sentence(found) == (
        "Compute takes longer; of the lost compute time: 76 % lower clocks, at 66 % of the maximum instead "
        "of 90 % at the base; 24 % for a reason that the records do not show."
    )
    assert (
        names(point, replace(base, clock=None)) == names(replace(point, clock=None), base) == [("unknown",)]
    )


def test_a_cause_larger_than_the_loss_has_seconds_and_the_gain_beside_it() -> None:
    """Rank 1 needs 2.0 s where the others, faster than the base, need 0.9 s."""
    ranks = np.array([0.9, 2.0, 0.9, 0.9])
    point = ComputeState(ranks.mean(), 4, 8, rank_compute_s=ranks, stragglers={1: "node c01"})
    found = explain(point, ComputeState(1.0, 1, 8), 1.0)
    assert found[0].seconds > point.compute_s - 1.0 > 0 > found[1].seconds
    assert [cause.names for cause in found] == [("slow_ranks",), ("unknown",)]
    text = sentence(found)
    assert text == (
        "Compute takes 175 ms longer: 289 ms lost, 114 ms gained. Lost: node c01 computes 122 % longer than "
        "the median of the other ranks. Gained: for a reason that the records do not show."
    )


def test_two_causes_larger_than_the_loss_read_as_one_list() -> None:
    ranks = np.array([0.9, 2.0, 0.9, 0.9])
    point = ComputeState(ranks.mean(), 4, 8, rank_compute_s=ranks, clock=0.9)
    text = sentence(explain(point, ComputeState(1.0, 1, 8, clock=1.0), 1.0))
    assert re.fullmatch(
        r"Compute takes 175 ms longer: \d+ ms lost, \d+ ms gained\. Lost: \d+ ms slow ranks, as rank 1 "
        r"computes 122 % longer than the median rank; \d+ ms lower clocks, at 90 % of the maximum instead of "
        r"100 % at the base\. Gained: for a reason that the records do not show\.",
        text,
    ), text


def test_ranks_that_differ_as_little_as_at_the_base_are_not_blamed() -> None:
    ranks = np.array([1.5, 1.52, 1.49, 1.51])
    base = ComputeState(1.0, 1, 8, rank_compute_s=np.array([1.0]))
    assert names(ComputeState(ranks.mean(), 4, 8, rank_compute_s=ranks), base) == [("unknown",)]


def test_compute_of_microseconds_has_causes() -> None:
    assert names(ComputeState(1.6e-6, 2, 8), ComputeState(1e-6, 1, 8)) == [("unknown",)]


def test_no_cause_without_a_loss() -> None:
    assert explain(ComputeState(0.9, 2, 8), ComputeState(1.0, 1, 8), 1.0) == ()
    assert explain(ComputeState(1.0, 2, 8), ComputeState(1.0, 1, 8), 1.0) == ()
    assert explain(ComputeState(1.0, 2, 8), ComputeState(0.0, 1, 8), 1.0) == (), "the base has no compute"
    assert sentence(()) == ""


@given(
    st.floats(0.01, 10),
    st.floats(0.01, 10),
    st.floats(0.1, 4),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
    st.floats(0.3, 1),
    st.floats(0.3, 1),
)
def test_causes_sum_to_the_loss(
    actual_s: float, base_s: float, work: float, ranks: list[float], clock: float, base_clock: float
) -> None:
    shape = np.array(ranks) / np.mean(ranks) * actual_s
    point = ComputeState(actual_s, len(ranks), 4, rank_compute_s=shape, clock=clock)
    causes = explain(point, ComputeState(base_s, 1, 8, clock=base_clock), work)
    loss_s = actual_s - work * base_s
    assert sum(cause.seconds for cause in causes) == pytest.approx(max(loss_s, 0.0), abs=1e-8 * actual_s)
