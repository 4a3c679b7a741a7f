"""Waiting above its noise floor: the floor is moved from waiting to transfer, before any section reads them.

Transfer is recorded as a minimum over ranks, so that measurement noise shows as waiting
(`analysis.stragglers.noise_floor`). Every figure of the report counts this floor as transfer; exposed
communication, their sum, stays. The recorded waiting is the waiting plus `PhaseTimes.floor_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.efficiency import Curve, Point, loss_by_phase
from analysis.losses.waterfall import Floats, PhaseTimes, phase_times

WAIT, TRANSFER = "comm_wait_s", "comm_transfer_s"


def without_floor(times: PhaseTimes, floor_s: Floats) -> PhaseTimes:
    """The times with the floor as transfer, at most the recorded waiting; `floor_s`: shape (repeats,)."""
    moved_s = np.minimum(times.phases[WAIT], floor_s)
    moved = {WAIT: times.phases[WAIT] - moved_s, TRANSFER: times.phases[TRANSFER] + moved_s}
    return replace(times, phases={**times.phases, **moved}, floor_s=moved_s)


def as_recorded(times: PhaseTimes) -> PhaseTimes:
    """The times of `without_floor` with the floor as waiting again."""
    if times.floor_s is None:
        return times
    return replace(without_floor(times, -times.floor_s), floor_s=None)


def curve_without_floor(
    curve: Curve, floors_s: Mapping[tuple[str, ...], Floats], table: pd.DataFrame
) -> Curve:
    """The curve with the floor as transfer in the composition of its points and in their losses by phase.

    Args:
        floors_s: by `Point.runs`, seconds of each repeat; points that are missing keep their composition.
        table: of `analysis.read.load.load`, with the runs of the curve.
    """
    points = []
    for point in curve.points:
        floor_s = floors_s.get(point.runs)
        if floor_s is not None and point.composition[WAIT]:
            recorded = phase_times(point, curve, table)
            share = float(without_floor(recorded, floor_s).phases[WAIT].sum() / recorded.phases[WAIT].sum())
            point = replace(point, composition=_composition(point, share))
        points.append(point)
    changed = replace(curve, points=tuple(points))
    base = changed.base
    if base is None:
        return changed
    others = (
        point
        if point is base or point.loss_by_phase is None
        else replace(point, loss_by_phase=loss_by_phase(point, base))
        for point in points
    )
    return replace(changed, points=tuple(others))


def _composition(point: Point, share: float) -> dict[str, float | None]:
    """The composition with this share of the waiting left as waiting."""
    wait_s, transfer_s = point.composition[WAIT] or 0.0, point.composition[TRANSFER] or 0.0
    return point.composition | {WAIT: share * wait_s, TRANSFER: transfer_s + (1 - share) * wait_s}
