"""Where the time of a step is lost: waterfall against the base, bottlenecks, and causes of lost compute time.

**Waterfall**: seconds that each phase adds to, or saves from, the step that the base predicts. The phases k
partition the step T(N). With w = samples per device and step at N / those at the base N0, the ideal step is
T*(N) = w T(N0), and

    delta_k = t_k(N) - w t_k(N0)        sum of delta_k = T(N) - T*(N)
    share_k = delta_k / T(N)            sum of share_k = 1 - E(N)

A negative delta is a gain. The phases are means over ranks: the extra compute of one slow rank appears as
waiting of the others.

**Bottlenecks** at one size, ranked by the ceiling of the gain from removing each. With s the share of the
step T that a phase takes, throughput without that phase is X / (1 - s): the gain has the ceiling s / (1 - s).
It is no forecast, because the removed time can move to another phase. Compute and optimizer are needed, so
that only their part beyond the prediction of the base counts.

A bottleneck is significant if the lower bound of its share over repeats exceeds `MATERIAL`.

**Causes** of compute that takes longer than the base predicts. Two have a size:

    slow ranks      compute of the named stragglers beyond the median of the other ranks, as a mean over ranks
    lower clocks    the other compute x (1 - clock / clock of the base)

The rest has candidates without a size: processors shared by more ranks, and kernels of a smaller local
batch. Other work on the nodes stands in their place; without a candidate the cause of the rest is unknown.
The parts sum exactly to the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from analysis.results.culprits import recurring
from analysis.results.curves import Curve, Point, metric
from analysis.results.phases import WAIT, Part, Phases, losses
from analysis.stats.estimates import Estimate, Floats
from analysis.study import Study

PERSISTENT, TRANSIENT = "persistent_wait_s", "transient_wait_s"
"""Parts of `WAIT`: for ranks that are always slow, and for ranks late in turn."""
NAMED = 0.01
"""Losses and gains from this share of the step on are named in sentences."""
SHOWN = 0.001
"""Parts below this share of the step have no row and no bar."""
MATERIAL = 0.01
"""Smallest share of a step that counts as a bottleneck."""
STRAGGLERS = "stragglers"
"""Part of the step that named stragglers cost: their longer phases and the waiting of the others."""
NEEDED = ("compute_s", "optimizer_s")
"""Phases that cannot be removed: only the part beyond the base's prediction counts."""
_MOST = 0.999
"""Share of the step whose ceiling is the highest that is stated."""
OTHER_WORK = ("packed", "overlaps", "other load")
"""Kinds of caveat on other runs and other processes that were at work on the nodes."""
SMALL = 0.1
"""Sized causes below this share of the loss are counted in the rest."""


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


class Cause(NamedTuple):
    """One part of the compute loss."""

    evidence: Mapping[str, Mapping[str, Any]]
    """Numbers of the sentence by cause; more than one: candidates that the records cannot separate."""
    seconds: float
    """Seconds per step, mean over ranks; negative for a gain."""


def compute_causes(study: Study, curve: Curve, point: Point) -> list[Cause]:
    """Causes of the compute time that a point loses against the base of its curve: slow ranks first, then the
    largest. Empty without a loss."""
    base = curve.base
    if base is None:
        return []
    work, compute_s = point.work_ratio(base), point.composition["compute_s"] or 0.0
    ideal_s = work * (base.composition["compute_s"] or 0.0)
    loss_s = compute_s - ideal_s
    if ideal_s <= 0 or loss_s < NAMED * point.step_s.value:
        return []
    slow_s, before_s = (
        float(np.mean(straggler_seconds(study, each).get("compute_s", 0.0))) for each in (point, base)
    )
    slow = [part for part in recurring(study.diagnoses(point)) if part.first.phase == "compute_s"]
    clock, before = (metric("gpu.sm_clock_ratio_mean")(each) for each in (point, base))
    lower = 1 - clock.value / before.value if clock and before and before.value else 0.0
    sized = [
        Cause({"slow ranks": {"parts": slow}}, slow_s - work * before_s),
        Cause({"lower clocks": {"clock": clock, "before": before}}, lower * (compute_s - slow_s)),
    ]
    causes = [cause for cause in sized if cause.seconds >= SMALL * loss_s]
    rest_s = loss_s - sum(cause.seconds for cause in causes)
    if abs(rest_s) > 1e-9 * loss_s:
        candidates = _candidates(study, curve, point, base) if rest_s > 0 else {}
        causes.append(Cause(candidates or {"unknown": {}}, rest_s))
    return sorted(causes, key=lambda cause: ("slow ranks" not in cause.evidence, -cause.seconds))


def _candidates(study: Study, curve: Curve, point: Point, base: Point) -> dict[str, dict[str, Any]]:
    """Causes of the rest, which have no size of their own."""
    doubts = doubts_of(study, point, base)
    candidates: dict[str, dict[str, Any]] = {kind: {} for kind in OTHER_WORK if kind in doubts}
    if candidates:
        return candidates
    shared, before = (any(metrics.oversubscribed for metrics in each.metrics) for each in (point, base))
    if shared and not curve.emulated and (not before or point.runs[0].one_machine):
        candidates["shared processors"] = {}
    if point.local_batch_size < base.local_batch_size:
        candidates["smaller batch"] = {"own": point.local_batch_size, "before": base.local_batch_size}
    return candidates


def doubts_of(study: Study, *points: Point | None) -> set[str]:
    """Kinds of the caveats that doubt times of the runs of these points: they shared a machine."""
    paths = frozenset().union(*(point.paths for point in points if point))
    return {each.kind for each in study.caveats if "transfer advice" in each.forbids and each.runs & paths}
