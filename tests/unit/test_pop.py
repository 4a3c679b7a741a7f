"""POP factors multiply to the parallel efficiency, and with computation scaling to the efficiency."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analysis.results.curves import scaling_curves
from analysis.results.pop import EFFICIENCY, FACTORS, SCALING, chain, curve_factors, factors, step_chain
from analysis.results.rank_steps import straggler_loss
from analysis.stats.estimates import Estimate, Floats
from disttrain.records.steps import PHASES
from tests.support.step_series import ar1
from tests.support.straggler_records import delays, generate, steps_of
from tests.support.studies import run_of


@st.composite
def runs(draw: st.DrawFn) -> tuple[Floats, Floats, Floats]:
    """Useful time, time on the host, and the step."""
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 6)))
    useful = draw(arrays(np.float64, shape, elements=st.floats(0.01, 10)))
    host = draw(arrays(np.float64, shape, elements=st.floats(0, 10)))
    transfer = draw(arrays(np.float64, shape[1], elements=st.floats(0, 10)))
    return useful, host, (useful + host).max(axis=0) + transfer


def values_of(*several: tuple[Floats, Floats, Floats]) -> dict[str, float]:
    chains = np.array([chain(*run) / run[2].size for run in several])
    return {name: each.value for name, each in factors(chains).items()}


@given(st.lists(runs(), min_size=1, max_size=3))
def test_the_product_is_the_parallel_efficiency(several: list[tuple[Floats, Floats, Floats]]) -> None:
    """Geometric means over repeats keep the products."""
    values = values_of(*several)
    efficiency = values.pop(EFFICIENCY)
    assert tuple(values) == FACTORS
    assert math.prod(values.values()) == pytest.approx(efficiency)
    ratios = [useful.mean(axis=0).sum() / step_s.sum() for useful, _, step_s in several]
    assert efficiency == pytest.approx(np.exp(np.mean(np.log(ratios))))
    assert all(0 < value <= 1 + 1e-12 for value in values.values())


def test_a_slow_rank_is_persistent_changing_ranks_are_transient_and_the_host_is_no_balance() -> None:
    slow, turns, host = np.ones((4, 8)), np.ones((4, 8)), np.zeros((4, 8))
    slow[2] *= 1.25
    turns[np.arange(8) % 4, np.arange(8)] *= 1.25
    host[1] = 0.25
    for useful, on_host, expected in (
        (slow, 0 * host, [4.25 / 5, 1, 1]),
        (turns, 0 * host, [1, 4.25 / 5, 1]),
        (np.ones((4, 8)), host, [1, 1, 1 / 1.25]),
    ):
        values = values_of((useful, on_host, (useful + on_host).max(axis=0)))
        assert [values[name] for name in FACTORS] == pytest.approx([*expected, 1])


def test_equal_ranks_lose_nothing_to_the_rank_that_is_slowest_by_chance() -> None:
    """The largest mean of eight equal ranks exceeds their mean by 1.4 standard errors: 1.2 % here."""
    rng, found = np.random.default_rng(4), []
    for _ in range(20):
        useful = 1 + 0.05 * rng.standard_normal((8, 34))
        found.append(values_of((useful, 0 * useful, useful.max(axis=0)))["persistent_balance"])
        persistent_s = straggler_loss(useful).persistent_s
        assert found[-1] == pytest.approx(useful.mean() / (useful.mean() + persistent_s))
    assert np.mean(found) > 0.997


NAN = math.nan
ROW = {"compute_s": 0.5, "optimizer_s": 0.1, "input_s": 0.1, "checkpoint_s": 0.0, "other_s": 0.1}
ROW |= {"step_s": 1.0, "steps": 1, "comm_exposed_s": 0.2, "measured": True, "attempt": 0, "kept": True}
STEPS = pd.DataFrame([ROW | {"rank": rank, "step": step} for rank in (0, 1) for step in (1, 2, 3)])
STEPS.loc[0, ["measured", "compute_s"]] = [False, 9.0]  # step 1 of rank 0
AGGREGATE = STEPS[STEPS["step"] == 2].assign(steps=4, step_s=[3.0, 5.0], comm_exposed_s=[0.5, NAN])
AGGREGATE = AGGREGATE.assign(compute_s=2.0, optimizer_s=NAN, input_s=0.5, checkpoint_s=NAN, other_s=0.25)


@pytest.mark.parametrize(
    ("rows", "ranks", "sums"),
    [
        (STEPS, 2, [0.6, 0.6, 0.6, 0.8, 1.0]),
        # an ingested table may lack a phase; one rank needs no communication
        (AGGREGATE, 2, [0.5, 0.5, 0.5, 2.75 / 4, 1.0]),
        (AGGREGATE[:1].assign(comm_exposed_s=NAN), 1, [0.5, 0.5, 0.5, 2.75 / 4, 3.0 / 4]),
        (STEPS, 3, None),  # a rank recorded nothing
        (STEPS.assign(measured=False), 2, None),
        (STEPS.assign(comm_exposed_s=NAN), 2, None),
        (STEPS.assign(compute_s=NAN), 2, None),
        (STEPS.assign(compute_s=0.0, optimizer_s=0.0), 2, None),  # no useful time
        (STEPS[STEPS["step"] == STEPS["rank"] + 2], 2, None),  # no step of both ranks
    ],
)
def test_a_step_is_the_mean_over_ranks_and_measured_steps_of_all_phases(rows, ranks, sums) -> None:
    found = step_chain(steps_of(rows), ranks)
    assert (found is None) == (sums is None)
    if sums:
        assert found.tolist() == pytest.approx(sums)


def test_factors_of_a_curve_with_computation_scaling_give_its_efficiency() -> None:
    def run(ranks: int, repeat: int, more_s: float = 0.0, batch: int = 8, **metrics: str):
        rows = generate(delays(ranks, 60, jitter_s=0.004, seed=repeat) + more_s, seed=repeat)
        values = {"composition": {name: rows[name].mean() for name in PHASES}, **metrics}
        return run_of(
            ranks,
            repeat=repeat,
            mean_s=rows["step_s"].mean(),
            batch=batch,
            metrics=values,
            steps=steps_of(rows),
        )

    (curve,) = scaling_curves(
        [run(ranks, at, more, batch) for ranks, more, batch in ((2, 0.1, 16), (4, 0, 8)) for at in (0, 1, 2)]
    )
    base, point = curve_factors(curve)
    assert (SCALING in base, SCALING in point) == (False, True)
    efficiency = point[EFFICIENCY].value / base[EFFICIENCY].value * point[SCALING].value
    assert efficiency == pytest.approx(curve.points[1].efficiency.value, rel=1e-3)
    (stages,) = scaling_curves([run(2, 0, strategy="pipeline")])
    assert curve_factors(stages) == [{}]


def test_repeats_have_intervals_that_end_at_one_and_one_run_has_none() -> None:
    rng, several = np.random.default_rng(0), []
    for _ in range(3):
        useful = np.stack([ar1(rng, 60, 0.5, 0.05) for _ in range(3)])
        step_s = useful.max(axis=0) + 0.2 * ar1(rng, 60, 0.5, 0.2)
        several.append(chain(useful, np.zeros_like(useful), step_s))
    for value in factors(np.array(several[:1])).values():
        assert value == Estimate(value.value, None, None, 1)
    found = factors(np.array(several))
    balance, transfer = found["persistent_balance"], found["transfer"]
    assert balance.low < balance.value < 1 == balance.high
    assert transfer.low < transfer.value < transfer.high < 1
