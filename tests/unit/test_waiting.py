"""Waiting above its noise floor: the floor becomes transfer, and all sums stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.efficiency import loss_by_phase, scaling_curves
from analysis.losses.waiting import TRANSFER, WAIT, as_recorded, curve_without_floor, without_floor
from analysis.losses.waterfall import PhaseTimes, waterfall
from analysis.read.frames import load
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_sweep

SECONDS = st.floats(0.0, 10.0)


def times(wait_s: list[float], compute_s: float = 1.0, transfer_s: float = 0.2, ranks: int = 2) -> PhaseTimes:
    phases = {name: np.zeros(len(wait_s)) for name in PHASES}
    phases |= {
        "compute_s": phases[WAIT] + compute_s,
        TRANSFER: phases[WAIT] + transfer_s,
        WAIT: np.array(wait_s),
    }
    return PhaseTimes(np.sum([*phases.values()], axis=0), phases, ranks, 8 * ranks, ranks)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=4))
def test_the_floor_becomes_transfer_and_the_step_and_its_waterfall_still_add_up(
    repeats: list[tuple[float, float]],
) -> None:
    waits, floors = [wait for wait, _ in repeats], np.array([floor for _, floor in repeats])
    recorded = times(waits)
    found = without_floor(recorded, floors)
    assert (found.phases[WAIT] >= 0).all()
    assert found.phases[WAIT] == pytest.approx(np.maximum(np.array(waits) - floors, 0.0))
    assert found.phases[WAIT] + found.phases[TRANSFER] == pytest.approx(
        recorded.phases[WAIT] + recorded.phases[TRANSFER]
    )
    assert sum(found.phases.values()) == pytest.approx(found.step_s)
    assert as_recorded(found).phases[WAIT] == pytest.approx(recorded.phases[WAIT])
    assert abs(waterfall(found, times([0.0], ranks=1, transfer_s=0.0)).closing_error_s) < 1e-12


def test_the_floor_of_a_curve_moves_its_compositions_and_the_losses_against_the_base(tmp_path: Path) -> None:
    phases = {"compute_s": 0.07, WAIT: 0.01, TRANSFER: 0.02}
    table = load([fake_sweep(tmp_path, composition=phases)])
    (curve,) = scaling_curves(table)
    base, middle, last = curve.points
    floors = {base.runs: np.full(3, 0.001), last.runs: np.full(3, 0.004)}
    found = curve_without_floor(curve, floors, table)
    assert found.points[1].composition == middle.composition
    for before, after, floor_s in ((base, found.points[0], 0.001), (last, found.points[2], 0.004)):
        recorded = before.composition
        scale = recorded[WAIT] / 0.01
        moved = {WAIT: recorded[WAIT] - scale * floor_s, TRANSFER: recorded[TRANSFER] + scale * floor_s}
        assert after.composition == pytest.approx(recorded | moved)
    assert found.base is found.points[0]
    assert found.points[0].loss_by_phase == base.loss_by_phase
    for before, after in zip(curve.points[1:], found.points[1:], strict=True):
        assert after.loss_by_phase == pytest.approx(loss_by_phase(after, found.points[0]))
        assert after.loss_by_phase != pytest.approx(before.loss_by_phase)
    assert replace(found, points=curve.points) == curve
    alone = replace(curve, base_size=None)
    assert curve_without_floor(alone, floors, table).points[2].composition == found.points[2].composition
    no_loss = replace(curve, points=(base, replace(last, loss_by_phase=None)))
    assert curve_without_floor(no_loss, floors, table).points[1].loss_by_phase is None


def test_times_without_a_floor_are_as_recorded() -> None:
    recorded = times([0.5, 0.25])
    assert as_recorded(recorded) is recorded
    assert recorded.floor_s is None
