"""Waterfalls of the sizes of a study, each against the base of its curve."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.efficiency import Curve, Point
from analysis.losses.waterfall import (
    Floats,
    Part,
    PhaseTimes,
    Waterfall,
    has_phases,
    split_waiting,
    waterfall,
)
from analysis.study import Study
from disttrain.records.steps import PHASES

NAMED = 0.01
"""Losses and gains from this share of the step on are named in sentences."""


@dataclass(frozen=True)
class SizeWaterfall:
    """The waterfall of one point against the base of its curve."""

    curve: Curve
    point: Point
    found: Waterfall
    whole: Waterfall
    """With waiting as one part: sentences name phases, and its parts vary against each other over repeats."""


def waterfalls(study: Study) -> list[SizeWaterfall]:
    """Waterfalls of all points that have a base, in the order of curves and sizes."""
    found = []
    for curve in study.curves:
        if curve.base is None or not has_phases(curve.base):
            continue
        for point in curve.points:
            if point is not curve.base and has_phases(point):
                found.append(SizeWaterfall(curve, point, *_measured(study, curve, point, curve.base)))
    return found


def _measured(study: Study, curve: Curve, point: Point, base: Point) -> tuple[Waterfall, Waterfall]:
    """The waterfall with waiting split where it can be, and with waiting as one part; without phases that
    neither size measured, whose parts are exactly zero."""
    times, before = (study.phase_times(curve, each) for each in (point, base))
    split, split_before = (divided(study, curve, each) for each in (point, base))
    absent = {name for name in PHASES if point.composition[name] is base.composition[name] is None}
    whole = waterfall(times, before)
    if "comm_wait_s" not in absent and split is not None and split_before is not None:
        times, before = split, split_before
    return _without(waterfall(times, before), absent), _without(whole, absent)


def _without(found: Waterfall, absent: set[str]) -> Waterfall:
    return replace(found, parts=tuple(part for part in found.parts if part.name not in absent))


def divided(study: Study, curve: Curve, point: Point) -> PhaseTimes | None:
    """The phases with waiting as a persistent and a transient part; None where it cannot be divided."""
    shares = _persistent_shares(study, curve, point)
    return None if shares is None else split_waiting(study.phase_times(curve, point), shares)


def _persistent_shares(study: Study, curve: Curve, point: Point) -> Floats | None:
    """Share of each repeat's waiting that is persistent; None where the ranks' records show no late rank."""
    if point.world_size == 1:
        return np.zeros(len(point.runs))
    paths = {row["run"]: str(row["path"]) for row in study.runs_of(curve, point)}
    known = [study.stragglers.get(paths[run]) for run in point.runs]
    losses = [each.diagnosis.loss for each in known if each is not None]
    if len(losses) < len(known) or any(loss.total_s <= 0 for loss in losses):
        return None
    return np.array([loss.persistent_s / loss.total_s for loss in losses])


def leading(found: list[SizeWaterfall]) -> SizeWaterfall:
    """The largest size of the curve with the highest throughput there."""
    last = {id(each.curve): each for each in found}
    return max(last.values(), key=lambda each: each.point.samples_per_s.value)


def largest_loss(shown: SizeWaterfall) -> Part | None:
    """The largest loss whose interval excludes zero; None if it is below `NAMED`."""
    settled = [part for part in shown.whole.parts if part.share.low is None or part.share.low > 0]
    largest = max(settled, key=lambda part: part.share.value, default=None)
    return largest if largest is not None and largest.share.value >= NAMED else None
