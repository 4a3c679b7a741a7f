"""Phases of a size: they sum to the step, and their intervals cover."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student_t

from analysis.read.load import load_runs
from analysis.results.curves import loss_by_phase, scaling_curves
from analysis.results.phases import TRANSFER, WAIT, Phases, partition
from analysis.step_statistics import step_statistics
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_sweep

SECONDS = st.floats(0.0, 10.0)


def communicating(wait_s: list[float], floor_s: list[float] | tuple[()] = ()) -> Phases:
    """One second of compute and 0.2 s of transfer beside this waiting, by repeat."""
    wait = np.array(wait_s)
    return partition(1.2 + wait, {"compute_s": wait * 0 + 1, TRANSFER: wait * 0 + 0.2, WAIT: wait}, floor_s)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=4))
def test_the_floor_becomes_transfer_and_the_step_still_adds_up(repeats: list[tuple[float, float]]) -> None:
    waits, floors = (np.array(values) for values in zip(*repeats, strict=True))
    recorded = communicating([*waits])
    phases = communicating([*waits], [*floors])
    assert phases.array(WAIT) == pytest.approx(np.maximum(waits - floors, 0.0))
    assert phases.array(WAIT, TRANSFER) == pytest.approx(recorded.array(WAIT, TRANSFER))
    assert phases.array(WAIT) + phases.floor_s == pytest.approx(waits)
    assert phases.array(*phases.seconds) == pytest.approx(phases.step_s)


def test_phases_without_a_number_were_not_measured_and_the_others_sum_to_the_step() -> None:
    nan = float("nan")
    phases = partition([2.0, 4.0], {"compute_s": [0.5, 2.0], "other_s": [0.5, nan], WAIT: [nan, nan]})
    seconds = {name: each.tolist() for name, each in phases.seconds.items()}
    assert seconds == {"compute_s": [1.0, 4.0], "other_s": [1.0, 0.0]}
    assert (phases.mean_s(WAIT), phases.share(WAIT)) == (None, None)
    assert phases.known
    assert not partition([2.0], {"compute_s": [0.0], "other_s": [2.0]}).known
    assert not partition([2.0], {"compute_s": [nan]}).known


def test_a_share_is_the_ratio_of_sums_with_the_interval_of_the_linearized_ratio() -> None:
    phases = partition([1.0, 2.0, 4.0], {"compute_s": [0.9, 1.5, 3.0], WAIT: [0.1, 0.5, 1.0]})
    share, seconds = phases.share(WAIT), phases.mean_s(WAIT)
    assert share is not None
    assert seconds is not None
    assert share.value == pytest.approx(1.6 / 7)
    assert seconds.value == pytest.approx(share.value * 2.0)  # of the geometric mean step
    deviations = (np.array([0.1, 0.5, 1.0]) - share.value * np.array([1, 2, 4])) / (7 / 3)
    half = student_t.ppf(0.975, 2) * deviations.std(ddof=1) / np.sqrt(3)
    assert (share.low, share.high) == pytest.approx((share.value - half, share.value + half))
    assert share.repeats == 3
    moving = replace(phases, basis="not stationary").share(WAIT)
    assert moving is not None
    assert (moving.value, moving.low, moving.basis) == (share.value, None, "not stationary")


def test_one_repeat_has_no_interval() -> None:
    phases = communicating([0.3])
    for estimate in (phases.share(WAIT), phases.mean_s(WAIT)):
        assert estimate is not None
        assert (estimate.low, estimate.high, estimate.repeats) == (None, None, 1)


def test_no_share_is_above_the_whole_step() -> None:
    share = partition([1.0, 1.0], {"compute_s": [0.4, 0.0], WAIT: [0.6, 1.0]}).share(WAIT)
    assert share is not None
    assert (share.value, share.high) == (0.8, 1.0)


def test_equal_shares_have_no_spread_although_their_seconds_have() -> None:
    phases = partition([1.0, 2.0], {"compute_s": [0.75, 1.5], WAIT: [0.25, 0.5]})
    share, seconds = phases.share(WAIT), phases.mean_s(WAIT)
    assert share is not None
    assert seconds is not None
    assert (share.low, share.high) == pytest.approx((0.25, 0.25))
    assert seconds.low == 0.0, "no phase is shorter than nothing"
    assert seconds.high is not None
    assert seconds.high > 1


def test_the_floor_of_a_curve_moves_its_compositions_and_the_losses_against_the_base(tmp_path: Path) -> None:
    phases = {"compute_s": 0.07, WAIT: 0.01, TRANSFER: 0.02}
    runs = load_runs([fake_sweep(tmp_path, efficiency=1.0, composition=phases)])
    (curve,), known = scaling_curves(runs), step_statistics(runs)
    base, middle, last = curve.points
    floors_s = dict.fromkeys(base.paths, 0.001) | dict.fromkeys(last.paths, 0.004)
    floored = {path: replace(known[path], ranks=SimpleNamespace(floor_s=s)) for path, s in floors_s.items()}
    (changed,) = scaling_curves(runs, None, known | floored)
    assert changed.points[1].composition == middle.composition
    for before, after in ((base, changed.points[0]), (last, changed.points[2])):
        moved = before.composition[WAIT] - after.composition[WAIT]
        assert moved == pytest.approx(after.phases.time(after.phases.floor_s).seconds.value)
        assert after.composition[TRANSFER] == pytest.approx(before.composition[TRANSFER] + moved)
        assert sum(after.composition[name] or 0 for name in PHASES) == pytest.approx(after.step_s.value)
    assert changed.points[0].loss_by_phase == base.loss_by_phase
    assert changed.points[2].loss_by_phase == loss_by_phase(changed.points[2], changed.points[0])
