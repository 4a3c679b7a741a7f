"""Curves of a sweep against those of another sweep, and strategies of one sweep against each other.

Points of equal shape (nodes and ranks) are compared by the ratio of their throughputs. All ratios of one
comparison are judged together (`analysis.stats.verdicts`), because among many comparisons some differ by
chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from analysis.results.caveats import losses_apart
from analysis.results.claims import WIDE
from analysis.results.curves import Curve, Point, rate_ratio
from analysis.stats.estimates import Estimate
from analysis.stats.repeats import repeats_needed, spread_of, two_groups
from analysis.stats.verdicts import EQUIVALENCE_MARGIN, Verdict, compare, verdicts

STRATEGY = "parallel.strategy"
PRECISION = "precision.dtype"
_BASES = ("ddp", "dp", "single", "fp32", "tf32")
"""Strategies and precisions that others are compared with, the first that the sweep has."""


_MESSAGES = ("parallel.ddp.", "parallel.gradient_communication.")
"""Beginnings of options that set how ranks exchange gradients."""


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


def is_settled(point: Point) -> bool:
    """Whether the throughput of a point may be ranked among others (cheapest, fastest, Pareto-optimal).

    It may be with an interval over repeats, unlike one repeat or steps that are not stationary, whose bounds
    differ by less than a factor of 1.5. Points are ranked together only if their runs `trained_alike`.
    """
    rate = point.samples_per_s
    return rate.low is not None and rate.high is not None and rate.high <= WIDE * rate.low


def trained_alike(points: Sequence[Point]) -> bool:
    """Whether no two of these points trained differently.

    Final losses are compared at one global batch and number of steps; of other batches they differ rightly.
    """
    return not any(losses_apart(one, other) for one, other in combinations(points, 2))


@dataclass(frozen=True)
class RepeatPlan:
    """Repeats a side that settle a difference in throughput in 80 % of comparisons."""

    spread: float
    """Standard deviation of the logarithm of a repeat, over all sizes with more than one."""
    needed: Mapping[str, int | None]
    """By difference in percent; null above 100 repeats."""


def repeat_plan(curves: Sequence[Curve]) -> RepeatPlan | None:
    """The plan for differences of 5 % and 2 %; None without a size with more than one repeat."""
    spread = spread_of([point.samples_per_s_by_run for curve in curves for point in curve.points])
    if spread is None:
        return None
    return RepeatPlan(spread, {str(effect): repeats_needed(spread, effect / 100) for effect in (5, 2)})


def against(
    curves: Sequence[Curve], others: Sequence[Curve], margin: float = EQUIVALENCE_MARGIN
) -> list[PointComparison]:
    """Points of `curves` against points of the same shape of the matching curve among `others`.

    Curves match if they agree in all axes that both have, and if both are emulated or neither is. A single
    curve on either side matches in spite of other values: then the axes are what is compared.
    """
    pairs = []
    for curve in curves:
        found = [other for other in others if _matches(curve, other)]
        alone = len(curves) == 1 or len(others) == 1
        candidates = found or ([each for each in others if each.emulated == curve.emulated] if alone else [])
        pairs += [(curve, other) for other in candidates]
    return _compared(pairs, margin)


def unmatched(curves: Sequence[Curve], compared: Sequence[PointComparison]) -> list[str]:
    """Labels of the curves without any point that was compared."""
    known = {id(each.curve) for each in compared} | {id(each.base_curve) for each in compared}
    return [curve.label for curve in curves if id(curve) not in known]


def options(
    curves: Sequence[Curve], key: str = STRATEGY, margin: float = EQUIVALENCE_MARGIN
) -> list[PointComparison]:
    """Curves of one sweep that differ in one option alone, against the curve of its base value."""
    groups: dict[tuple[Any, ...], list[Curve]] = {}
    for curve in curves:
        if curve.axes.get(key) is not None:
            rest = tuple(sorted((name, str(value)) for name, value in curve.axes.items() if name != key))
            groups.setdefault((curve.sweep, curve.emulated, rest), []).append(curve)
    pairs = []
    for group in groups.values():
        names = [str(curve.axes[key]) for curve in group]
        base = next((name for name in _BASES if name in names), names[0])
        reference = group[names.index(base)]
        pairs += [(curve, reference) for curve in group if curve is not reference]
    return _compared(pairs, margin)


def configurations(
    lead: Curve, curves: Sequence[Curve], margin: float = EQUIVALENCE_MARGIN
) -> list[PointComparison]:
    """Points of `lead`, the fastest curve, against points of the same shape of the others of its sweep.

    Curves that differ in the strategy alone are left out: `options` compares them.
    """
    others = [each for each in curves if each.sweep == lead.sweep and each.emulated == lead.emulated]
    keys = [key for key in lead.axes if key != STRATEGY]
    differing = [each for each in others if any(each.axes.get(key) != lead.axes[key] for key in keys)]
    return _compared([(lead, other) for other in differing], margin, best_of=len(differing) + 1)


def fastest(lead: Curve, curves: Sequence[Curve], margin: float = EQUIVALENCE_MARGIN) -> bool:
    """Whether the largest size of `lead` is faster than that size of every other curve, by the verdicts."""
    largest = replace(lead, points=lead.points[-1:])
    others = [curve for curve in curves if curve is not lead and curve.emulated == lead.emulated]
    compared = _compared([(largest, other) for other in others], margin, best_of=len(others) + 1)
    return len(compared) == len(curves) - 1 and all(each.verdict == "faster" for each in compared)


def _matches(curve: Curve, other: Curve) -> bool:
    common = curve.axes.keys() & other.axes.keys()
    return curve.emulated == other.emulated and all(curve.axes[key] == other.axes[key] for key in common)


def _compared(pairs: Sequence[tuple[Curve, Curve]], margin: float, best_of: int = 2) -> list[PointComparison]:
    found = [
        (curve, point, other, base)
        for curve, other in pairs
        for point in curve.points
        for base in other.points
        if point.shape == base.shape
        and not (point.world_size == base.world_size == 1 and _differ_in_messages_alone(curve, other))
    ]
    comparisons = [
        compare(point.samples_per_s_by_run, base.samples_per_s_by_run, margin) for _, point, _, base in found
    ]
    judged = verdicts(comparisons, best_of=best_of)
    rows = []
    for (curve, point, other, base), verdict in zip(found, judged, strict=True):
        reason = _obstacle(point, base) or ("the interval is too wide" if verdict == "unsettled" else "")
        settled: Verdict = "unsettled" if reason else verdict
        rows.append(PointComparison(curve, point, other, base, rate_ratio(point, base), settled, reason))
    return rows


def _differ_in_messages_alone(curve: Curve, other: Curve) -> bool:
    """Whether only options of the messages between ranks differ: one rank sends none."""
    keys = curve.axes.keys() | other.axes.keys()
    differing = [key for key in keys if curve.axes.get(key) != other.axes.get(key)]
    return bool(differing) and all(key.startswith(_MESSAGES) for key in differing)


def _obstacle(point: Point, base: Point) -> str:
    """The reason for which two points cannot be compared; empty if they can."""
    if "not stationary" in (point.samples_per_s.basis, base.samples_per_s.basis):
        return "not stationary"
    if min(len(point.runs), len(base.runs)) == 1:
        return "one repeat"
    grouped = any(two_groups(each.samples_per_s_by_run) for each in (point, base))
    return "repeats fall into two groups" if grouped else ""
