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
    over_repeats,
    parallel_efficiency,
    rank_steps,
)
from analysis.stats.estimates import Estimate
from analysis.stragglers.persistence import unbiased_loss
from tests.support.step_series import ar1


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


def test_equal_ranks_lose_nothing_to_the_rank_that_is_slowest_by_chance() -> None:
    """The largest mean of eight equal ranks exceeds their mean by 1.4 standard errors: 1.2 % here."""
    rng = np.random.default_rng(4)
    found = []
    for _ in range(20):
        useful = 1 + 0.05 * rng.standard_normal((8, 34))
        run = RankSteps(useful, np.zeros_like(useful), useful.max(axis=0), 34)
        found.append(factors(run)["persistent_balance"])
        own_s = unbiased_loss(useful)
        assert found[-1] == pytest.approx(useful.mean() / (useful.mean() + own_s.persistent_s))
    assert np.mean(found) > 0.997


def test_only_measured_steps_of_all_ranks_count() -> None:
    row = {"compute_s": 0.5, "optimizer_s": 0.1, "input_s": 0.1, "checkpoint_s": 0.0, "other_s": 0.1}
    row |= {"step_s": 1.0, "steps": 1, "comm_exposed_s": 0.2, "measured": True}
    steps = pd.DataFrame([row | {"rank": rank, "step": step} for rank in (0, 1) for step in (1, 2, 3)])
    steps.loc[0, "measured"] = False  # step 1 of rank 0
    found = rank_steps(steps)
    assert found.useful_s.shape == (2, 2)
    assert found.steps == 2
    assert factors(found)["transfer"] == pytest.approx(0.8)
    assert found.step_s.shape == (2,)
    assert rank_steps(steps.assign(measured=False)) is None
    assert rank_steps(steps.assign(comm_exposed_s=float("nan"))) is None
    assert rank_steps(steps.assign(compute_s=float("nan"))) is None
    assert rank_steps(steps[steps["step"] == steps["rank"] + 2]) is None, "no step of both ranks"


def test_a_step_is_the_mean_over_ranks_of_all_phases_that_were_measured() -> None:
    """An ingested table may lack a phase; one rank needs no communication."""
    nan = float("nan")
    seconds = {"compute_s": 2.0, "optimizer_s": nan, "input_s": 0.5, "checkpoint_s": nan, "other_s": 0.25}
    steps = pd.DataFrame(
        [seconds | {"rank": rank, "step": 8, "steps": 4, "measured": True} for rank in (0, 1)]
    ).assign(step_s=[3.0, 5.0], comm_exposed_s=[0.5, nan])
    found = rank_steps(steps)
    assert found is not None
    assert found.useful_s.tolist() == [[2.0], [2.0]]
    assert found.host_s.tolist() == [[0.75], [0.75]]
    assert found.step_s.tolist() == [4.0]
    assert (found.steps, found.useful_per_step_s) == (4, 0.5)
    alone = rank_steps(steps[:1].assign(comm_exposed_s=nan))
    assert alone is not None
    assert alone.step_s.tolist() == [3.0]


def test_factors_need_useful_time() -> None:
    idle = RankSteps(np.zeros((2, 3)), np.ones((2, 3)), np.ones(3), 3)
    with pytest.raises(ValueError, match=r"^no rank has useful time$"):
        factors(idle)


def test_the_interval_of_a_factor_does_not_depend_on_the_unit() -> None:
    run = jittery_run(0, 100)
    scaled = RankSteps(1000 * run.useful_s, 1000 * run.host_s, 1000 * run.step_s, run.steps)
    for name, found in over_repeats([scaled]).items():
        expected = over_repeats([run])[name]
        assert (found.value, found.low, found.high) == pytest.approx(
            (expected.value, expected.low, expected.high)
        )


def jittery_run(seed: int, steps: int) -> RankSteps:
    """Rank 3 of four is slow by a tenth, and jitter of 5 % is correlated at 0.5."""
    rng = np.random.default_rng(seed)
    useful = np.stack([ar1(rng, steps, 0.5, 0.05) for _ in range(4)])
    useful[3] += 0.1
    return RankSteps(
        useful, np.zeros_like(useful), useful.max(axis=0) + 0.2 * ar1(rng, steps, 0.5, 0.2), steps
    )


def test_the_interval_of_a_factor_without_loss_ends_at_one() -> None:
    equal = [
        RankSteps(run.useful_s[:3], run.host_s[:3], run.step_s, 60)
        for run in map(jittery_run, range(3), [60] * 3)
    ]
    balance = over_repeats(equal)["persistent_balance"]
    assert balance.low is not None
    assert balance.low < balance.value < 1
    assert balance.high == 1


def test_factors_of_few_steps_have_no_interval_and_of_repeats_one_between_them() -> None:
    few = jittery_run(0, 29)
    for name, found in over_repeats([few]).items():
        value = factors(few)[name] if name in FACTORS else parallel_efficiency(few)
        assert found == Estimate(pytest.approx(value), None, None, 1)
    several = over_repeats([jittery_run(seed, 40) for seed in range(3)])
    assert {each.basis for each in several.values()} == {"repeats"}
    transfer = several["transfer"]
    assert transfer.low is not None
    assert transfer.high is not None
    assert transfer.low < transfer.value < transfer.high
