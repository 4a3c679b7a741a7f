"""Waterfalls close exactly, show gains, and have intervals that cover."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from analysis.read.load import load_runs
from analysis.results.curves import scaling_curves
from analysis.results.lost_time import NAMED, Waterfall, largest_loss, waterfalls
from analysis.results.phases import TRANSFER, WAIT, Part, Phases, losses, partition
from analysis.stats.estimates import Estimate
from analysis.study import Study, make_study
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_sweep


@st.composite
def sizes(draw: st.DrawFn) -> Phases:
    """Phases of one to four repeats."""
    repeats = draw(st.integers(1, 4))
    row = st.lists(st.floats(0.001, 100), min_size=repeats, max_size=repeats).map(np.array)
    seconds = {name: draw(row) for name in PHASES}
    return partition(np.sum([*seconds.values()], axis=0), seconds)


@given(sizes(), sizes(), st.floats(0.1, 4))
def test_parts_sum_to_the_loss(point: Phases, base: Phases, work: float) -> None:
    parts, actual_s, ideal_s = losses(point, base, work), point.mean_step_s, work * base.mean_step_s
    scale_s = max(actual_s, ideal_s)
    assert math.fsum(part.ideal_s for part in parts) == pytest.approx(ideal_s)
    lost_s = math.fsum(part.seconds.value for part in parts)
    assert lost_s == pytest.approx(actual_s - ideal_s, abs=1e-12 * scale_s)
    shares = math.fsum(part.share.value for part in parts)
    assert shares == pytest.approx(1 - ideal_s / actual_s, abs=1e-11 * scale_s / actual_s)


def test_a_gain_is_negative_and_small_parts_are_not_shown() -> None:
    base = partition([1.0] * 2, {"compute_s": [0.8] * 2, "other_s": [0.2] * 2})
    point = partition([1.0] * 2, {"compute_s": [0.5] * 2, "other_s": [0.499] * 2, WAIT: [0.001] * 2})
    parts = losses(point, base, 1.0)
    seconds = {part.name: part.seconds.value for part in parts}
    assert seconds == pytest.approx({"compute_s": -0.3, "other_s": 0.299, WAIT: 0.001})
    less = partition([1.0] * 2, {"compute_s": [0.5] * 2, "other_s": [0.4991] * 2, WAIT: [0.0009] * 2})
    shown = Waterfall(None, None, None, losses(less, base, 1.0), ()).shown
    assert [part.name for part in shown] == ["compute_s", "other_s"]


def test_a_phase_without_a_part_in_the_base_has_one_interval_everywhere() -> None:
    """The loss of a phase that one rank does not have is the phase itself."""
    point = partition([1.0, 1.1, 1.3], {"compute_s": [0.9, 0.9, 1.0], TRANSFER: [0.1, 0.2, 0.3]})
    for recorded in ({"compute_s": [0.9]}, {"compute_s": [0.9], TRANSFER: [0]}):
        parts = losses(point, partition([0.9], recorded), 1.0)
        (part,) = (part for part in parts if part.name == TRANSFER)
        for one, other in ((part.share, point.share(TRANSFER)), (part.seconds, point.mean_s(TRANSFER))):
            assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high))


def test_the_waterfall_of_runs_agrees_with_the_losses_of_the_curve(tmp_path: Path) -> None:
    (curve,) = scaling_curves(load_runs([fake_sweep(tmp_path, scaling="strong")]))
    base = curve.points[0]
    for point in curve.points[1:]:
        for part in losses(point.phases, base.phases, point.work_ratio(base)):
            assert part.share.value == pytest.approx(point.loss_by_phase[part.name], abs=1e-9)
            assert part.share.low <= part.share.value <= part.share.high


def test_intervals_are_welchs_and_those_of_shares_linearize_the_ratio() -> None:
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
        half = (interval.high - interval.low) / 2
        assert estimate.high - estimate.value == pytest.approx(half)
        assert (estimate.repeats, estimate.basis) == (2, "repeats")
    moving = losses(point, replace(base, basis="not stationary"), 2.0)
    assert all(part.share.low is None for part in moving)


def test_intervals_cover_the_true_share() -> None:
    """Three repeats a side with 2 % spread in compute and 10 % in waiting; nominal coverage is 95 %."""
    generator, covered, count = np.random.default_rng(5), 0, 1000
    truth = 0.2 / 1.2
    for _ in range(count):
        compute, before = (1.0 * (1 + 0.02 * generator.standard_normal(3)) for _ in range(2))
        wait = 0.2 * (1 + 0.1 * generator.standard_normal(3))
        base, point = partition(before, {"compute_s": before}), {"compute_s": compute, WAIT: wait}
        parts = losses(partition(compute + wait, point), base, 1.0)
        share = next(part.share for part in parts if part.name == WAIT)
        covered += share.low <= truth <= share.high
    assert 0.93 <= covered / count <= 0.985


def study_of(sweep: Path) -> Study:
    table = load_runs([sweep])
    return make_study(table)


def test_sizes_have_waterfalls_where_their_curve_has_a_base(tmp_path: Path) -> None:
    axes = [{"parallel.ddp.bucket_mb": 4}, {"parallel.ddp.bucket_mb": 32}]
    study = study_of(fake_sweep(tmp_path, axes=axes))
    fast, slow = study.curves
    shown = waterfalls(study)
    assert [(each.curve.label, each.point.size) for each in shown] == [
        (curve.label, size) for curve in (fast, slow) for size in (2, 4)
    ]
    study.__dict__["curves"] = [
        replace(fast, points=tuple(replace(point, is_base=False) for point in fast.points)),
        slow,
    ]
    assert [each.curve.label for each in waterfalls(study)] == [slow.label] * 2
    unmeasured = tuple(replace(point, phases=replace(point.phases, seconds={})) for point in fast.points)
    study.__dict__["curves"] = [replace(fast, points=unmeasured), slow]
    assert [each.curve.label for each in waterfalls(study)] == [slow.label] * 2


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ([(0.3, 0.0), (0.2, 0.1), (0.1, 0.05)], 1),  # the interval of the first one contains 0
        ([(0.1, None), (0.2, None)], 1),
        ([(NAMED, 0.001)], 0),
        ([(0.009, 0.001)], None),
        ([], None),
    ],
)
def test_the_largest_loss_is_settled_and_large_enough(
    tmp_path: Path, shares: list[tuple[float, float | None]], named: int | None
) -> None:
    (shown, *_) = waterfalls(study_of(fake_sweep(tmp_path, nodes=(1, 2), repeats=1)))
    parts = tuple(
        Part(str(number), Estimate(0.1, None, None, 1), Estimate(value, low, low and 0.5, 3))
        for number, (value, low) in enumerate(shares)
    )
    loss = largest_loss(replace(shown, whole=parts))
    assert (loss.name if loss else None) == (None if named is None else str(named))
