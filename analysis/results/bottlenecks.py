"""Bottlenecks at one size, ranked by the ceiling of the gain from removing each.

With s the share of the step T that a phase takes, throughput without that phase is X / (1 - s): the gain has
the ceiling s / (1 - s). It is no forecast, because the removed time can move to another phase. Compute and
optimizer are needed, so that only their part beyond the prediction of the base counts.

A bottleneck is significant if the lower bound of its share over repeats exceeds `MATERIAL`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from analysis.results.culprits import recurring
from analysis.results.curves import Curve, Point
from analysis.results.phases import WAIT, Phases, losses
from analysis.stats.estimates import Estimate, Floats
from analysis.study import Study

MATERIAL = 0.01
"""Smallest share of a step that counts as a bottleneck."""
STRAGGLERS = "stragglers"
"""Part of the step that named stragglers cost: their longer phases and the waiting of the others."""
NEEDED = ("compute_s", "optimizer_s")
"""Phases that cannot be removed: only the part beyond the base's prediction counts."""
_MOST = 0.999
"""Share of the step whose ceiling is the highest that is stated."""


@dataclass(frozen=True)
class Bottleneck:
    """One phase that takes time which could be saved."""

    phase: str
    share: Estimate
    """Removable share of the step, at least 0."""
    rest: bool = False
    """Whether the stragglers' part of the phase is left out."""

    @property
    def significant(self) -> bool:
        return self.share.low is not None and self.share.low > MATERIAL

    @property
    def ceiling(self) -> Estimate:
        """Largest gain in throughput from its removal, as a share of the throughput."""
        return self.share.mapped(lambda share: 1 / (1 - min(max(share, 0.0), _MOST)) - 1)


def bottlenecks(
    point: Phases, base: Phases | None, work: float = 1.0, straggler_s: Mapping[str, Floats] | None = None
) -> list[Bottleneck]:
    """Phases that take at least `MATERIAL` of the step, the highest ceiling first.

    Args:
        base: the size that predicts compute and optimizer; None leaves these two out.
        work: samples per device and step at the point / those at the base.
        straggler_s: seconds of a step that named stragglers cost, by the phase in which they are recorded,
            each of shape (repeats,). They are one part; the phases count with the rest of their seconds.
    """
    costs = straggler_s or {}
    rest = replace(point, seconds={name: each - costs.get(name, 0.0) for name, each in point.seconds.items()})
    shares = {name: point.time(each).share for name, each in rest.seconds.items() if name not in NEEDED}
    if base is not None:
        shares |= {part.name: part.share for part in losses(rest, base, work) if part.name in NEEDED}
    if costs:
        shares[STRAGGLERS] = point.time(sum(costs.values(), start=0 * point.step_s)).share
    parts = [Bottleneck(*item, rest=item[0] in costs) for item in shares.items() if item[1].value >= MATERIAL]
    return sorted(parts, key=lambda each: -each.share.value)


def at_largest(study: Study, curve: Curve) -> list[Bottleneck] | None:
    """Bottlenecks of the largest size of a curve that may be listed: significant, or without an interval.

    None without measured phases.
    """
    point, base = curve.points[-1], curve.base
    if not point.phases.known:
        return None
    before, work = (base.phases, point.work_ratio(base)) if base and base.phases.known else (None, 1.0)
    parts = bottlenecks(point.phases, before, work, straggler_seconds(study, point))
    return [each for each in parts if each.significant or each.share.low is None]


def straggler_seconds(study: Study, point: Point) -> dict[str, Floats]:
    """Seconds of a step that named ranks and nodes cost in each repeat, by phase; empty without any.

    Phases are means over ranks: of the cost, the excess of the slow ranks is in their longer phase, the rest
    in the waiting of the others.
    """
    diagnoses, step_s = study.diagnoses(point), point.phases.step_s
    names = {each.name for part in recurring(diagnoses) for each in part.culprits if each.ranks}
    costs: dict[str, Floats] = {}
    if len(diagnoses) < len(step_s):
        return costs
    for repeat, (diagnosis, metrics) in enumerate(zip(diagnoses, point.metrics, strict=True)):
        for each in (culprit for culprit in diagnosis.culprits if culprit.name in names):
            length = min(1.0, (each.last_step - each.first_step + 1) / metrics.measured_steps)
            own_s = each.excess_s.value * length * len(each.ranks) / point.world_size
            for phase, cost_s in ((each.phase, own_s), (WAIT, each.cost_s - own_s)):
                costs.setdefault(phase, 0 * step_s)[repeat] += cost_s * step_s[repeat] / each.step_s
    return costs
