"""Phases of a size: they sum to the step, losses sum to what is missing, and their intervals cover."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student_t
from scipy.stats import ttest_ind

from analysis.results.curves import loss_by_phase, scaling_curves
from analysis.results.phases import TRANSFER, WAIT, Phases, losses, partition
from analysis.step_statistics import step_statistics
from disttrain.records.steps import PHASES
from tests.support.studies import sweep_of

SECONDS = st.floats(0.0, 10.0)


@st.composite
def sizes(draw: st.DrawFn) -> Phases:
    """Phases of one to four repeats."""
    repeats = draw(st.integers(1, 4))
    row = st.lists(st.floats(0.001, 100), min_size=repeats, max_size=repeats).map(np.array)
    seconds = {name: draw(row) for name in PHASES}
    return partition(np.sum([*seconds.values()], axis=0), seconds)


@given(sizes(), sizes(), st.floats(0.1, 4))
def test_losses_sum_to_the_loss(point: Phases, base: Phases, work: float) -> None:
    parts, actual_s, ideal_s = losses(point, base, work), point.mean_step_s, work * base.mean_step_s
    scale_s = max(actual_s, ideal_s)
    assert math.fsum(part.ideal_s for part in parts) == pytest.approx(ideal_s)
    lost_s = math.fsum(part.seconds.value for part in parts)
    assert lost_s == pytest.approx(actual_s - ideal_s, abs=1e-12 * scale_s)
    shares = math.fsum(part.share.value for part in parts)
    assert shares == pytest.approx(1 - ideal_s / actual_s, abs=1e-11 * scale_s / actual_s)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=4))
def test_the_floor_becomes_transfer_and_the_step_still_adds_up(repeats: list[tuple[float, float]]) -> None:
    """Beside one second of compute and 0.2 s of transfer."""
    waits, floors = (np.array(values) for values in zip(*repeats, strict=True))
    recorded = {"compute_s": 1 + 0 * waits, TRANSFER: 0.2 + 0 * waits, WAIT: waits}
    phases = partition(1.2 + waits, recorded, floors)
    assert phases.array(WAIT) == pytest.approx(np.maximum(waits - floors, 0.0))
    assert phases.array(WAIT) + phases.floor_s == pytest.approx(waits)
    assert phases.array(WAIT, TRANSFER) == pytest.approx(0.2 + waits)
    assert phases.array(*phases.seconds) == pytest.approx(phases.step_s)


def test_phases_without_a_number_were_not_measured_and_the_others_sum_to_the_step() -> None:
    nan = float("nan")
    phases = partition([2.0, 4.0], {"compute_s": [0.5, 2.0], "other_s": [0.5, nan], WAIT: [nan, nan]})
    seconds = {name: each.tolist() for name, each in phases.seconds.items()}
    assert seconds == {"compute_s": [1.0, 4.0], "other_s": [1.0, 0.0]}
    assert (phases.mean_s(WAIT), phases.share(WAIT)) == (None, None)
    known = [partition([2.0], {"compute_s": [value], "other_s": [2.0]}).known for value in (1.0, 0.0, nan)]
    assert known == [True, False, False]


def test_a_share_is_the_ratio_of_sums_with_the_interval_of_the_linearized_ratio() -> None:
    phases = partition([1.0, 2.0, 4.0], {"compute_s": [0.9, 1.5, 3.0], WAIT: [0.1, 0.5, 1.0]})
    share, seconds = phases.share(WAIT), phases.mean_s(WAIT)
    assert share.value == pytest.approx(1.6 / 7)
    assert seconds.value == pytest.approx(share.value * 2.0)  # of the geometric mean step
    deviations = (np.array([0.1, 0.5, 1.0]) - share.value * np.array([1, 2, 4])) / (7 / 3)
    half = student_t.ppf(0.975, 2) * deviations.std(ddof=1) / np.sqrt(3)
    assert (share.low, share.high) == pytest.approx((share.value - half, share.value + half))
    moving = replace(phases, basis="not stationary").share(WAIT)
    assert (moving.value, moving.low, moving.basis) == (share.value, None, "not stationary")
    alone = partition([1.0], {"compute_s": [0.9], WAIT: [0.1]}).share(WAIT)
    assert (alone.low, alone.repeats, share.repeats) == (None, 1, 3)


@pytest.mark.parametrize(
    ("step_s", "wait_s", "share", "least_s"),
    [
        ([1.0, 1.0], [0.6, 1.0], (0.8, 1.0), None),  # no share is above the whole step
        ([1.0, 2.0], [0.25, 0.5], (0.25, 0.25), 0.0),  # equal shares; no phase is shorter than nothing
    ],
)
def test_intervals_end_at_the_whole_step_and_at_nothing(step_s, wait_s, share, least_s) -> None:
    phases = partition(step_s, {"compute_s": np.subtract(step_s, wait_s), WAIT: wait_s})
    found = phases.share(WAIT)
    assert (found.value, found.high) == pytest.approx(share)
    if least_s is not None:
        assert phases.mean_s(WAIT).low == least_s < 1 < phases.mean_s(WAIT).high


def test_intervals_of_losses_are_welchs_and_those_of_shares_linearize_the_ratio() -> None:
    rng = np.random.default_rng(4)
    wait, before = rng.uniform(0.2, 0.3, 2), rng.uniform(0.05, 0.1, 3)
    point = partition(step := rng.uniform(1.5, 2, 2), {WAIT: wait, "compute_s": step - wait})
    base = partition(step := rng.uniform(0.7, 0.8, 3), {WAIT: before, "compute_s": step - before})
    part = next(part for part in losses(point, base, 2.0) if part.name == WAIT)
    own, others = point.scaled(point.array(WAIT)), 2 * base.scaled(base.array(WAIT))
    of_step = others / point.mean_step_s
    linear = (point.array(WAIT) - part.share.value * np.array(point.step_s)) / np.mean(point.step_s)
    for estimate, one, other in ((part.seconds, own, others), (part.share, linear, of_step)):
        interval = ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
        assert estimate.high - estimate.value == pytest.approx((interval.high - interval.low) / 2)
        assert (estimate.repeats, estimate.basis) == (2, "repeats")
    for moving in (
        (point, replace(base, basis="not stationary")),
        (replace(point, basis="not stationary"), base),
    ):
        assert {part.share.basis for part in losses(*moving, 2.0)} == {"not stationary"}


def test_a_phase_that_the_base_has_not_is_lost_as_a_whole_with_one_interval_everywhere() -> None:
    point = partition([1.0, 1.1, 1.3], {"compute_s": [0.9, 0.9, 1.0], TRANSFER: [0.1, 0.2, 0.3]})
    for recorded in ({"compute_s": [0.9]}, {"compute_s": [0.9], TRANSFER: [0]}):
        parts = {part.name: part for part in losses(point, partition([0.9], recorded), 1.0)}
        for one, other in (
            (parts[TRANSFER].share, point.share(TRANSFER)),
            (parts[TRANSFER].seconds, point.mean_s(TRANSFER)),
        ):
            assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high))


def test_intervals_cover_the_true_share() -> None:
    """Three repeats a side with 2 % spread in compute and 10 % in waiting; nominal coverage is 95 %."""
    generator, covered, count = np.random.default_rng(5), 0, 1000
    for _ in range(count):
        compute, before = (1.0 * (1 + 0.02 * generator.standard_normal(3)) for _ in range(2))
        wait = 0.2 * (1 + 0.1 * generator.standard_normal(3))
        point = partition(compute + wait, {"compute_s": compute, WAIT: wait})
        parts = {part.name: part for part in losses(point, partition(before, {"compute_s": before}), 1.0)}
        covered += parts[WAIT].share.low <= 0.2 / 1.2 <= parts[WAIT].share.high
    assert 0.93 <= covered / count <= 0.985


def test_the_floor_of_a_curve_moves_its_compositions_and_the_losses_against_the_base() -> None:
    runs = sweep_of((1, 2, 4), metrics={"composition": {"compute_s": 0.07, WAIT: 0.01, TRANSFER: 0.02}})
    (curve,), known = scaling_curves(runs), step_statistics(runs)
    base, middle, last = curve.points
    floors_s = dict.fromkeys(base.paths, 0.001) | dict.fromkeys(last.paths, 0.004)
    floored = {path: replace(known[path], ranks=SimpleNamespace(floor_s=s)) for path, s in floors_s.items()}
    without = {path: replace(each, ranks=None) for path, each in known.items()}
    (changed,) = scaling_curves(runs, None, without | floored)
    assert changed.points[1].composition == middle.composition
    for before, after in ((base, changed.points[0]), (last, changed.points[2])):
        moved = before.composition[WAIT] - after.composition[WAIT]
        assert moved == pytest.approx(after.phases.time(after.phases.floor_s).seconds.value)
        assert after.composition[TRANSFER] == pytest.approx(before.composition[TRANSFER] + moved)
    assert changed.points[2].loss_by_phase == loss_by_phase(changed.points[2], changed.points[0])
