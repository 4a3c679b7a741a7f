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

import numpy as np

from analysis.results.curves import Curve, Point
from analysis.results.phases import WAIT, Part, Phases, losses
from analysis.stats.estimates import Floats
from analysis.study import Study

PERSISTENT, TRANSIENT = "persistent_wait_s", "transient_wait_s"
"""Parts of `WAIT`: for ranks that are always slow, and for ranks late in turn."""
NAMED = 0.01
"""Losses and gains from this share of the step on are named in sentences."""
SHOWN = 0.001
"""Parts below this share of the step have no row and no bar."""


@dataclass(frozen=True)
class Waterfall:
    """From the ideal to the actual step of one point."""

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


def waterfalls(study: Study) -> list[Waterfall]:
    """Waterfalls of all points that have a base, in the order of curves and sizes."""
    found = []
    for curve, base in ((curve, curve.base) for curve in study.curves):
        for point in curve.points:
            if base is None or point is base or not (base.phases.known and point.phases.known):
                continue
            work = point.work_ratio(base)
            whole = losses(point.phases, base.phases, work)
            phases, before = (_divided_waiting(study, each) for each in (point, base))
            parts = losses(phases, before, work) if phases and before else whole
            found.append(Waterfall(curve, point, base, parts, whole))
    return found


def _divided_waiting(study: Study, point: Point) -> Phases | None:
    """The phases with waiting in its two parts; None where the ranks' records show no late rank."""
    steps = (study.rank_steps.get(run.path) for run in point.runs)
    lost = [each.loss for each in steps if each and each.loss.total_s > 0]
    if point.world_size > 1 and len(lost) < len(point.runs):
        return None
    share = np.array([loss.persistent_s / loss.total_s for loss in lost] or 0.0)
    seconds: dict[str, Floats] = {}
    for name, values in point.phases.seconds.items():
        waiting = {PERSISTENT: share * values, TRANSIENT: (1 - share) * values}
        seconds |= waiting if name == WAIT else {name: values}
    return replace(point.phases, seconds=seconds)


def largest_loss(shown: Waterfall) -> Part | None:
    """The largest loss whose interval excludes zero; None if it is below `NAMED`."""
    settled = [part for part in shown.whole if part.share.low is None or part.share.low > 0]
    largest = max(settled, key=lambda part: part.share.value, default=None)
    return largest if largest is not None and largest.share.value >= NAMED else None
