"""Curves of a sweep against those of another sweep, and configurations of one sweep against each other.

Points of equal shape (nodes and ranks) are compared by the ratio of their throughputs. All ratios of one
comparison are judged together (`analysis.stats.verdicts`), because among many comparisons some differ by
chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.read.load import load_runs
from analysis.results.curves import Curve, Point, rate_ratio
from analysis.stats.estimates import Estimate
from analysis.stats.verdicts import (
    Verdict,
    compare,
    repeats_needed,
    repeats_within,
    spread_of,
    two_groups,
    verdicts,
)
from analysis.study import make_study

_BASES = {"ddp": 0, "dp": 1, "single": 2, "fp32": 3, "tf32": 4}
"""Strategies and precisions that others are compared with: the lowest that the sweep has, else its first."""


@dataclass(frozen=True)
class PointComparison:
    """One point against another of the same shape."""

    curve: Curve
    point: Point
    base_curve: Curve
    base: Point
    ratio: Estimate
    """Throughput of `point` / throughput of `base`."""
    verdict: Verdict
    reason: str
    """Reason for `unsettled`; else empty."""

    @property
    def size(self) -> str:
        return self.curve.name(self.point)


def repeat_plan(curves: Sequence[Curve]) -> dict[str, Any] | None:
    """Repeats a side that settle differences of 5 % and 2 % in throughput in 80 % of comparisons, null above
    100, by the standard deviation of the logarithm of a repeat; None without a size with more than one."""
    points = [point for curve in curves for point in curve.points if point.basis != "equal repeats"]
    spread = spread_of([point.samples_per_s_by_run for point in points])
    if spread is None:
        return None
    needed = {str(effect): repeats_needed(spread, effect / 100) for effect in (5, 2)}
    return {"spread": spread, "needed": needed}


def repeats_lacking(sweep: Path, within: float) -> dict[str, int]:
    """Repeats that each size needs beyond its present ones for a throughput within +- `within`, by run.

    None where more repeats give no interval either: of sizes whose runs are not stationary, or are equal.
    """
    lacking: dict[str, int] = {}
    for point in make_study(load_runs([sweep])).points.values():
        rates = point.samples_per_s_by_run if point.basis == "repeats" else ()
        more = repeats_within(rates, within) - len(rates) if rates else 0
        lacking |= {run.name: more for run in point.runs}
    return lacking


def against(curves: Sequence[Curve], others: Sequence[Curve]) -> list[PointComparison]:
    """Points of `curves` against points of the same shape of the matching curve among `others`.

    Curves match if they agree in all axes that both have, and if both are emulated or neither is. A single
    curve on either side matches in spite of other values: then the axes are what is compared.
    """
    pairs = []
    for curve in curves:
        alike = [other for other in others if other.emulated == curve.emulated]
        same = [each for each in alike if curve.axes | each.axes == each.axes | curve.axes]
        alone = min(len(curves), len(others)) == 1
        pairs += [(curve, other) for other in same or (alike if alone else [])]
    return _compared(pairs)


def options(curves: Sequence[Curve], key: str) -> list[PointComparison]:
    """Curves of one sweep that differ in one option alone, against the curve of its base value."""
    pairs = []
    for curve in curves:
        alike = [each for each in curves if each is curve or curve.only_difference(each) == key]
        base = min(alike, key=lambda each: _BASES.get(str(each.axes.get(key)), len(_BASES)))
        if curve is not base:
            pairs.append((curve, base))
    return _compared(pairs)


def configurations(lead: Curve, curves: Sequence[Curve]) -> list[PointComparison]:
    """Points of `lead`, the fastest curve, against points of the same shape of the others of its sweep."""
    others = [
        each
        for each in curves
        if each is not lead and (each.sweep, each.emulated) == (lead.sweep, lead.emulated)
    ]
    return _compared([(lead, other) for other in others], best_of=len(others) + 1)


def _compared(pairs: Sequence[tuple[Curve, Curve]], best_of: int = 2) -> list[PointComparison]:
    found = [
        (curve, point, other, base)
        for curve, other in pairs
        for point in curve.points
        for base in other.points
        if point.shape == base.shape
    ]
    ratios = [compare(point.samples_per_s_by_run, base.samples_per_s_by_run) for _, point, _, base in found]
    rows = []
    for (curve, point, other, base), verdict in zip(found, verdicts(ratios, best_of=best_of), strict=True):
        sides, rates = (point, base), rate_ratio(point, base)
        reasons = {
            rates.basis: rates.basis != "repeats",
            "one repeat": any(len(each.runs) == 1 for each in sides),
            "repeats fall into two groups": any(two_groups(each.samples_per_s_by_run) for each in sides),
            "the interval is too wide": verdict == "unsettled",
        }
        reason = next((name for name, holds in reasons.items() if holds), "")
        settled: Verdict = "unsettled" if reason else verdict
        rows.append(PointComparison(curve, point, other, base, rates, settled, reason))
    return rows
