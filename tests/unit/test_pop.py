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
    chain,
    factors,
    step_chain,
)
from analysis.results.rank_steps import straggler_loss
from analysis.stats.estimates import Estimate, Floats, ratio
from tests.support.step_series import ar1
from tests.support.straggler_records import steps_of


@st.composite
def runs(draw: st.DrawFn) -> tuple[Floats, Floats, Floats]:
    """Useful time, time on the host, and the step."""
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 6)))
    useful = draw(arrays(np.float64, shape, elements=st.floats(0.01, 10)))
    host = draw(arrays(np.float64, shape, elements=st.floats(0, 10)))
    transfer = draw(arrays(np.float64, shape[1], elements=st.floats(0, 10)))
    return useful, host, (useful + host).max(axis=0) + transfer


def values_of(*run: Floats) -> dict[str, float]:
    return {name: each.value for name, each in factors(chain(*run)[None]).items()}


@given(runs())
def test_the_product_is_the_parallel_efficiency(run: tuple[Floats, Floats, Floats]) -> None:
    values, (useful, _, step_s) = values_of(*run), run
    efficiency = values.pop(EFFICIENCY)
    assert tuple(values) == FACTORS
    assert math.prod(values.values()) == pytest.approx(efficiency)
    assert efficiency == pytest.approx(useful.mean(axis=0).sum() / step_s.sum())
    assert all(0 < value <= 1 + 1e-12 for value in values.values())


@given(st.lists(runs(), min_size=1, max_size=3), runs(), st.floats(0.1, 4))
def test_over_repeats_the_product_with_computation_scaling_is_the_efficiency_against_the_base(
    several: list[tuple[Floats, Floats, Floats]], base: tuple[Floats, Floats, Floats], work: float
) -> None:
    """Geometric means over repeats keep the products."""
    chains, before = (np.array([chain(*run) / run[2].size for run in side]) for side in (several, [base]))
    values = factors(chains)
    assert math.prod(values[name].value for name in FACTORS) == pytest.approx(values[EFFICIENCY].value)
    efficiency = values[EFFICIENCY].value / factors(before)[EFFICIENCY].value
    efficiency *= work * ratio(before[:, 0], chains[:, 0]).value
    steps_s = [step_s.mean() for *_, step_s in several]
    assert efficiency == pytest.approx(work * base[2].mean() / np.exp(np.mean(np.log(steps_s))))


def test_a_slow_rank_is_persistent_and_changing_ranks_are_transient() -> None:
    steady = np.ones((4, 8))
    slow = steady.copy()
    slow[2] *= 1.25
    turns = steady.copy()
    turns[np.arange(8) % 4, np.arange(8)] *= 1.25
    one, many = (values_of(useful, np.zeros((4, 8)), useful.max(axis=0)) for useful in (slow, turns))
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
        found.append(values_of(useful, np.zeros_like(useful), useful.max(axis=0))["persistent_balance"])
        own_s = straggler_loss(useful)
        assert found[-1] == pytest.approx(useful.mean() / (useful.mean() + own_s.persistent_s))
    assert np.mean(found) > 0.997


def times(rows: pd.DataFrame) -> Floats | None:
    return step_chain(steps_of(rows.assign(attempt=0, kept=True)), rows["rank"].nunique())


def test_only_measured_steps_of_all_ranks_count() -> None:
    row = {"compute_s": 0.5, "optimizer_s": 0.1, "input_s": 0.1, "checkpoint_s": 0.0, "other_s": 0.1}
    row |= {"step_s": 1.0, "steps": 1, "comm_exposed_s": 0.2, "measured": True}
    steps = pd.DataFrame([row | {"rank": rank, "step": step} for rank in (0, 1) for step in (1, 2, 3)])
    steps.loc[0, ["measured", "compute_s"]] = [False, 9.0]  # step 1 of rank 0
    assert times(steps).tolist() == pytest.approx([0.6, 0.6, 0.6, 0.8, 1.0])
    for changed in ({"measured": False}, {"comm_exposed_s": math.nan}, {"compute_s": math.nan}):
        assert times(steps.assign(**changed)) is None
    assert times(steps.assign(compute_s=0.0, optimizer_s=0.0)) is None, "no useful time"
    assert times(steps[steps["step"] == steps["rank"] + 2]) is None, "no step of both ranks"


def test_a_step_is_the_mean_over_ranks_of_all_phases_that_were_measured() -> None:
    """An ingested table may lack a phase; one rank needs no communication."""
    nan = float("nan")
    seconds = {"compute_s": 2.0, "optimizer_s": nan, "input_s": 0.5, "checkpoint_s": nan, "other_s": 0.25}
    steps = pd.DataFrame(
        [seconds | {"rank": rank, "step": 8, "steps": 4, "measured": True} for rank in (0, 1)]
    ).assign(step_s=[3.0, 5.0], comm_exposed_s=[0.5, nan])
    assert times(steps).tolist() == [0.5, 0.5, 0.5, 2.75 / 4, 1.0]
    assert times(steps[:1].assign(comm_exposed_s=nan)).tolist() == [0.5, 0.5, 0.5, 2.75 / 4, 3.0 / 4]


def test_repeats_have_intervals_that_end_at_one_and_one_run_has_none() -> None:
    rng = np.random.default_rng(0)
    several = []
    for _ in range(3):
        useful = np.stack([ar1(rng, 60, 0.5, 0.05) for _ in range(3)])
        step_s = useful.max(axis=0) + 0.2 * ar1(rng, 60, 0.5, 0.2)
        several.append(chain(useful, np.zeros_like(useful), step_s))
    for value in factors(np.array(several[:1])).values():
        assert value == Estimate(value.value, None, None, 1)
    found = factors(np.array(several))
    balance, transfer = found["persistent_balance"], found["transfer"]
    assert balance.low < balance.value < 1
    assert balance.high == 1
    assert transfer.low < transfer.value < transfer.high < 1
