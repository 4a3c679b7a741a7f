"""POP factors multiply to the parallel efficiency, and their additive form sums to the loss."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analysis.losses.pop import (
    FACTORS,
    RankSteps,
    against_base,
    factors,
    losses,
    parallel_efficiency,
    rank_steps,
)


@st.composite
def runs(draw: st.DrawFn) -> RankSteps:
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 6)))
    useful = draw(arrays(np.float64, shape, elements=st.floats(0.01, 10)))
    host = draw(arrays(np.float64, shape, elements=st.floats(0, 10)))
    transfer = draw(arrays(np.float64, shape[1], elements=st.floats(0, 10)))
    return RankSteps(useful, host, (useful + host).max(axis=0) + transfer, shape[1])


@given(runs())
def test_the_product_is_the_parallel_efficiency(run: RankSteps) -> None:
    found = factors(run)
    assert tuple(found) == FACTORS
    assert math.prod(found.values()) == pytest.approx(parallel_efficiency(run))
    assert all(0 < value <= 1 + 1e-12 for value in found.values())


@given(runs(), runs(), st.floats(0.1, 4))
def test_against_the_base_the_product_is_the_efficiency_and_losses_sum_to_the_rest(
    run: RankSteps, base: RankSteps, work: float
) -> None:
    ratios = against_base([run], [base], work)
    efficiency = work * (base.step_s.sum() / base.steps) / (run.step_s.sum() / run.steps)
    assert math.prod(ratios.values()) == pytest.approx(efficiency)
    assert math.fsum(losses(ratios).values()) == pytest.approx(1 - efficiency, abs=1e-9 * max(1, efficiency))


@given(st.lists(runs(), min_size=2, max_size=3), runs())
def test_repeats_keep_the_product(several: list[RankSteps], base: RankSteps) -> None:
    ratios = against_base(several, [base], 1.0)
    each = [math.prod(against_base([run], [base], 1.0).values()) for run in several]
    assert math.prod(ratios.values()) == pytest.approx(math.prod(each) ** (1 / len(each)))


def test_a_slow_rank_is_persistent_and_changing_ranks_are_transient() -> None:
    steady = np.ones((4, 8))
    slow = steady.copy()
    slow[2] *= 1.25
    turns = steady.copy()
    turns[np.arange(8) % 4, np.arange(8)] *= 1.25
    one, many = (
        factors(RankSteps(useful, np.zeros((4, 8)), useful.max(axis=0), 8)) for useful in (slow, turns)
    )
    assert one["persistent_balance"] == pytest.approx((3 + 1.25) / 4 / 1.25)
    assert one["transient_balance"] == pytest.approx(1)
    assert many["persistent_balance"] == pytest.approx(1)
    assert many["transient_balance"] == pytest.approx((3 + 1.25) / 4 / 1.25)


def test_only_measured_steps_of_all_ranks_count() -> None:
    row = {"compute_s": 0.5, "optimizer_s": 0.1, "input_s": 0.1, "checkpoint_s": 0.0, "other_s": 0.1}
    row |= {"step_s": 1.0, "steps": 1, "comm_exposed_s": 0.2, "measured": True}
    steps = pd.DataFrame([row | {"rank": rank, "step": step} for rank in (0, 1) for step in (1, 2, 3)])
    steps.loc[0, "measured"] = False  # step 1 of rank 0
    found = rank_steps(steps)
    assert found.useful_s.shape == (2, 2)
    assert found.steps == 2
    assert factors(found)["transfer"] == pytest.approx(0.8)
    assert rank_steps(steps.assign(measured=False)) is None
    assert rank_steps(steps.assign(comm_exposed_s=float("nan"))) is None
