"""Waiting above its noise floor: the floor becomes transfer, and all sums stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.losses.waiting import TRANSFER, WAIT, as_recorded, without_floor
from analysis.losses.waterfall import PhaseTimes, waterfall, with_series
from disttrain.records.steps import PHASES

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


def test_the_steps_of_a_single_repeat_move_by_the_same_floor() -> None:
    rng = np.random.default_rng(0)
    series = {name: np.zeros(40) for name in PHASES} | {"compute_s": np.ones(40)}
    series |= {WAIT: rng.gamma(2.0, 0.02, 40), TRANSFER: np.full(40, 0.1)}
    series["step_s"] = np.sum([*series.values()], axis=0)
    means = {name: np.array([each.mean()]) for name, each in series.items()}
    made = with_series(PhaseTimes(means.pop("step_s"), means, 2, 16, 2), series)
    found = without_floor(made, np.array([0.01]))
    assert found.series is not None
    assert found.series[WAIT].mean() == pytest.approx(found.phases[WAIT][0])
    assert found.series[TRANSFER].mean() == pytest.approx(found.phases[TRANSFER][0])


def test_a_share_of_the_step_varies_less_than_its_seconds_where_long_steps_have_long_phases() -> None:
    """All steps have the same share, so that it has no spread, although the seconds of the phase have."""
    scale = 1 + 0.2 * np.random.default_rng(1).standard_normal(60)
    series = {name: np.zeros(60) for name in PHASES} | {"compute_s": 0.7 * scale, TRANSFER: 0.3 * scale}
    series["step_s"] = scale
    means = {name: np.array([each.mean()]) for name, each in series.items()}
    made = with_series(PhaseTimes(means.pop("step_s"), means, 2, 16, 2), series)
    share, seconds = made.share_of_step([TRANSFER]), made.within_run([TRANSFER])
    assert seconds is not None
    assert seconds.low is not None
    assert seconds.high is not None
    assert share.low is not None
    assert share.high is not None
    assert share.value == pytest.approx(0.3)
    assert share.basis == "within run"
    assert share.high - share.low < 1e-9 < seconds.high - seconds.low
