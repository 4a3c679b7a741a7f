"""POP factors multiply to the parallel efficiency, and their additive form sums to the loss."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analysis.results.pop import (
    EFFICIENCY,
    FACTORS,
    UsefulTime,
    computation_scaling,
    factors,
    over_repeats,
    useful_time,
)
from analysis.results.rank_steps import straggler_loss
from analysis.stats.estimates import Estimate
from tests.support.step_series import ar1
from tests.support.straggler_records import steps_of


@st.composite
def runs(draw: st.DrawFn) -> UsefulTime:
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 6)))
    useful = draw(arrays(np.float64, shape, elements=st.floats(0.01, 10)))
    host = draw(arrays(np.float64, shape, elements=st.floats(0, 10)))
    transfer = draw(arrays(np.float64, shape[1], elements=st.floats(0, 10)))
    return UsefulTime(useful, host, (useful + host).max(axis=0) + transfer, shape[1])


@given(runs())
def test_the_product_is_the_parallel_efficiency(run: UsefulTime) -> None:
    values = factors(run)
    efficiency = values.pop(EFFICIENCY)
    assert tuple(values) == FACTORS
    assert math.prod(values.values()) == pytest.approx(efficiency)
    assert efficiency == pytest.approx(run.useful_s.mean(axis=0).sum() / run.step_s.sum())
    assert all(0 < value <= 1 + 1e-12 for value in values.values())


@given(st.lists(runs(), min_size=1, max_size=3), runs(), st.floats(0.1, 4))
def test_over_repeats_the_product_with_computation_scaling_is_the_efficiency_against_the_base(
    several: list[UsefulTime], base: UsefulTime, work: float
) -> None:
    """Geometric means over repeats keep the products."""
    values = over_repeats(several)
    assert math.prod(values[name].value for name in FACTORS) == pytest.approx(values[EFFICIENCY].value)
    before = over_repeats([base])[EFFICIENCY].value
    efficiency = values[EFFICIENCY].value / before * computation_scaling(several, [base], work).value
    steps_s = [run.step_s.sum() / run.steps for run in several]
    expected = work * (base.step_s.sum() / base.steps) / np.exp(np.mean(np.log(steps_s)))
    assert efficiency == pytest.approx(expected)


def test_a_slow_rank_is_persistent_and_changing_ranks_are_transient() -> None:
    steady = np.ones((4, 8))
    slow = steady.copy()
    slow[2] *= 1.25
    turns = steady.copy()
    turns[np.arange(8) % 4, np.arange(8)] *= 1.25
    one, many = (
        factors(UsefulTime(useful, np.zeros((4, 8)), useful.max(axis=0), 8)) for useful in (slow, turns)
    )
    assert one["persistent_balance"] == pytest.approx((3 + 1.25) / 4 / 1.25)
    assert one["transient_balance"] == pytest.approx(1)
    assert many["persistent_balance"] == pytest.approx(1)
    assert many["transient_balance"] == pytest.approx((3 + 1.25) / 4 / 1.25)


def test_equal_ranks_lose_nothing_to_the_rank_that_is_slowest_by_chance() -> None:
    """The largest mean of eight equal ranks exceeds their mean by 1.4 standard errors: 1.2 % here."""
    rng = np.random.default_rng(4)
    found = []
    for _ in range(20):
        useful = 1 + 0.05 * rng.standard_normal((8, 34))
        run = UsefulTime(useful, np.zeros_like(useful), useful.max(axis=0), 34)
        found.append(factors(run)["persistent_balance"])
        own_s = straggler_loss(useful)
        assert found[-1] == pytest.approx(useful.mean() / (useful.mean() + own_s.persistent_s))
    assert np.mean(found) > 0.997


def times(rows: pd.DataFrame) -> UsefulTime | None:
    return useful_time(steps_of(rows.assign(attempt=0, kept=True)))


def test_only_measured_steps_of_all_ranks_count() -> None:
    row = {"compute_s": 0.5, "optimizer_s": 0.1, "input_s": 0.1, "checkpoint_s": 0.0, "other_s": 0.1}
    row |= {"step_s": 1.0, "steps": 1, "comm_exposed_s": 0.2, "measured": True}
    steps = pd.DataFrame([row | {"rank": rank, "step": step} for rank in (0, 1) for step in (1, 2, 3)])
    steps.loc[0, "measured"] = False  # step 1 of rank 0
    found = times(steps)
    assert found.useful_s.shape == (2, 2)
    assert found.steps == 2
    assert factors(found)["transfer"] == pytest.approx(0.8)
    assert found.step_s.shape == (2,)
    for name, value in (("measured", False), ("comm_exposed_s", math.nan), ("compute_s", math.nan)):
        assert times(steps.assign(**{name: value})) is None
    assert times(steps[steps["step"] == steps["rank"] + 2]) is None, "no step of both ranks"


def test_a_step_is_the_mean_over_ranks_of_all_phases_that_were_measured() -> None:
    """An ingested table may lack a phase; one rank needs no communication."""
    nan = float("nan")
    seconds = {"compute_s": 2.0, "optimizer_s": nan, "input_s": 0.5, "checkpoint_s": nan, "other_s": 0.25}
    steps = pd.DataFrame(
        [seconds | {"rank": rank, "step": 8, "steps": 4, "measured": True} for rank in (0, 1)]
    ).assign(step_s=[3.0, 5.0], comm_exposed_s=[0.5, nan])
    found = times(steps)
    assert found is not None
    assert found.useful_s.tolist() == [[2.0], [2.0]]
    assert found.host_s.tolist() == [[0.75], [0.75]]
    assert found.step_s.tolist() == [4.0]
    assert (found.steps, found.useful_per_step_s) == (4, 0.5)
    alone = times(steps[:1].assign(comm_exposed_s=nan))
    assert alone is not None
    assert alone.step_s.tolist() == [3.0]


def test_repeats_have_intervals_that_end_at_one_and_one_run_has_none() -> None:
    rng = np.random.default_rng(0)
    several = []
    for _ in range(3):
        useful = np.stack([ar1(rng, 60, 0.5, 0.05) for _ in range(3)])
        step_s = useful.max(axis=0) + 0.2 * ar1(rng, 60, 0.5, 0.2)
        several.append(UsefulTime(useful, np.zeros_like(useful), step_s, 60))
    for name, value in factors(several[0]).items():
        assert over_repeats(several[:1])[name] == Estimate(pytest.approx(value), None, None, 1)
    balance, transfer = (over_repeats(several)[name] for name in ("persistent_balance", "transfer"))
    assert balance.low < balance.value < 1
    assert balance.high == 1
    assert transfer.low < transfer.value < transfer.high < 1
