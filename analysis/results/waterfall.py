"""Waterfall of a step: seconds that each phase adds to, or saves from, the step that the base predicts.

The phases k partition the step T(N). With w = samples per device and step at N / those at the base N0, the
ideal step is T*(N) = w T(N0), and

    delta_k = t_k(N) - w t_k(N0)        sum of delta_k = T(N) - T*(N)
    share_k = delta_k / T(N)            sum of share_k = 1 - E(N)

A negative delta is a gain. The phases are means over ranks: the extra compute of one slow rank appears as
waiting of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from analysis.results.curves import Curve, Point
from analysis.results.phases import WAIT, Phases
from analysis.stats.estimates import Estimate
from analysis.study import Study

PERSISTENT, TRANSIENT = "persistent_wait_s", "transient_wait_s"
"""Parts of `WAIT`: for ranks that are always slow, and for ranks late in turn."""
ORDER = (
    "input_s",
    "compute_s",
    PERSISTENT,
    TRANSIENT,
    WAIT,
    "comm_transfer_s",
    "optimizer_s",
    "checkpoint_s",
    "other_s",
)
"""Order of the parts, the same for all sizes and sweeps, so that waterfalls compare."""
NAMED = 0.01
"""Losses and gains from this share of the step on are named in sentences."""
SHOWN = 0.001
"""Parts below this share of the step have no row and no bar."""


class Part(NamedTuple):
    """One part of the difference between the actual and the ideal step."""

    name: str
    seconds: Estimate
    """Seconds per step beyond the ideal; negative for a gain."""
    share: Estimate
    """`seconds` as a share of the actual step."""
    ideal_s: float = 0.0
    """Seconds of the ideal step in this part: those of the base times the ratio of the work."""


@dataclass(frozen=True)
class Waterfall:
    """From the ideal to the actual step of one point. Parts are in `ORDER`."""

    curve: Curve
    point: Point
    base: Point
    parts: tuple[Part, ...]
    """With persistent and transient waiting where they can be told apart."""
    whole: tuple[Part, ...]
    """With waiting as one part: sentences name phases, and its parts vary against each other over repeats."""

    @property
    def ideal_s(self) -> float:
        return sum(part.ideal_s for part in self.whole)

    @property
    def actual_s(self) -> float:
        return self.point.phases.mean_step_s

    @property
    def shown(self) -> list[Part]:
        """The parts from `SHOWN` on."""
        return [part for part in self.parts if abs(part.share.value) >= SHOWN]


def losses(point: Phases, base: Phases, work: float) -> tuple[Part, ...]:
    """Parts of the waterfall of `point` against `base`.

    Args:
        work: samples per device and step at the point / those at the base.
    """
    point = replace(point, stationary=point.stationary and base.stationary)
    names = [name for name in ORDER if name in point.seconds or name in base.seconds]
    ideal = {name: work * base.scaled(base.array(name)) for name in names}
    return tuple(
        Part(name, *point.time(point.array(name), ideal[name]), float(ideal[name].mean())) for name in names
    )


def waterfalls(study: Study) -> list[Waterfall]:
    """Waterfalls of all points that have a base, in the order of curves and sizes."""
    return [
        _waterfall(study, curve, point, base)
        for curve in study.curves
        if (base := curve.base) is not None and base.phases.known
        for point in curve.points
        if point is not base and point.phases.known
    ]


def _waterfall(study: Study, curve: Curve, point: Point, base: Point) -> Waterfall:
    work = point.work_ratio(base)
    whole = losses(point.phases, base.phases, work)
    phases, before = (_divided_waiting(study, each) for each in (point, base))
    parts = whole if phases is None or before is None else losses(phases, before, work)
    return Waterfall(curve, point, base, parts, whole)


def _divided_waiting(study: Study, point: Point) -> Phases | None:
    """The phases with waiting in its two parts; None where the ranks' records show no late rank."""
    phases = point.phases
    steps = (study.rank_steps.get(run.path) for run in point.runs)
    lost = [each.loss for each in steps if each and each.loss.total_s > 0]
    if point.world_size > 1 and (WAIT not in phases.seconds or len(lost) < len(point.runs)):
        return None
    wait_s = phases.array(WAIT)
    persistent_s = wait_s * np.array([loss.persistent_s / loss.total_s for loss in lost] or 0.0)
    others = {name: seconds for name, seconds in phases.seconds.items() if name != WAIT}
    divided = {PERSISTENT: persistent_s, TRANSIENT: wait_s - persistent_s}
    return replace(phases, seconds=others | divided)


def largest_loss(shown: Waterfall) -> Part | None:
    """The largest loss whose interval excludes zero; None if it is below `NAMED`."""
    settled = [part for part in shown.whole if part.share.low is None or part.share.low > 0]
    largest = max(settled, key=lambda part: part.share.value, default=None)
    return largest if largest is not None and largest.share.value >= NAMED else None
