"""Causes of lost compute time: from the records of runs to a cause, or to `unknown`.

Compute that takes longer than the base predicts has several causes that records can show. Two have a size:

    slow ranks      compute of the named stragglers beyond the median of the other ranks, as a mean over ranks
    lower clocks    the other compute x (1 - clock / clock of the base)

The rest has candidates without a size: processors shared by more ranks, and kernels of a smaller local
batch. Other work on the nodes stands in their place; without a candidate the cause of the rest is unknown.
The parts sum exactly to the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from analysis.results.bottlenecks import straggler_seconds
from analysis.results.culprits import recurring
from analysis.results.curves import Curve, Point, metric
from analysis.results.waterfall import NAMED
from analysis.study import Study

OTHER_WORK = ("overlaps", "other load")
"""Kinds of caveat on other runs and other processes that were at work on the nodes."""
SMALL = 0.1
"""Sized causes below this share of the loss are counted in the rest."""


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
