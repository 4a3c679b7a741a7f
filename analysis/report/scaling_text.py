"""Sentences on one scaling curve: headline, interval, loss by phase, base."""

from __future__ import annotations

from analysis.efficiency import Curve, Point
from analysis.figures.style import PHASE_NAMES
from analysis.stats.estimates import CONFIDENCE, Estimate
from analysis.units import bounds, interval, percent, plural, rate, seconds, times

WIDE = 1.5
"""Intervals whose bounds differ by more than this factor leave the headline unsettled."""


def headline(curve: Curve, curves: int = 1) -> str:
    """Speed-up and efficiency of the largest size against the base, as one sentence."""
    name = f" ({curve.label})" if curves > 1 else ""
    base, point = curve.base, headline_point(curve)
    if base is None:
        rates = _rates(curve.points[-1], curve)
        return f"No run of the requested base size{name}, so no speed-up; {rates}"
    if point is None or point.speedup is None or point.efficiency is None:
        one = f"{plural(base.size, curve.unit)}{name}: {rate(base.samples_per_s.value)}"
        return f"{one}; no other size to compare with"
    verb = "runs" if point.size == 1 else "run"
    speedup = (
        f"{plural(point.size, curve.unit)} {verb} {times(point.speedup.value, 1)} as fast as {base.size}"
    )
    mark = ", not stationary" if point.efficiency.basis == "not stationary" else ""
    return f"{speedup}{name}: {percent(point.efficiency.value, 0)} efficiency{mark}"


def precision(curve: Curve) -> str:
    """Interval of the headline's efficiency, and its difference from 100 % by phase if settled."""
    base, point = curve.base, headline_point(curve)
    if base is None or point is None or point.efficiency is None:
        return ""
    if point.efficiency.basis == "not stationary":
        return "The step times of some runs are not stationary, so these means have no interval."
    if point.efficiency.basis == "within run":
        bounds = f"[{100 * (point.efficiency.low or 0):.0f}, {100 * (point.efficiency.high or 0):.0f}] %"
        return (
            f"One repeat: {percent(CONFIDENCE, 0)} intervals within the run are {_speedup_bounds(point)} "
            f"and {bounds} (efficiency); the spread between repeats is unknown."
        )
    if point.efficiency.low is None:
        return "One repeat: no interval, because the spread between repeats is unknown."
    counts = list(dict.fromkeys([len(base.runs), len(point.runs)]))
    each = f"{counts[0]} repeats each" if len(counts) == 1 else f"{counts[0]} and {counts[1]} repeats"
    sentence = (
        f"{percent(CONFIDENCE, 0)} intervals {_speedup_bounds(point)} and "
        f"{interval(point.efficiency, 100, 0)} % from {each}."
    )
    if _unsettled(point.efficiency):
        return f"Not settled: {sentence} More repeats, or a quieter machine, would narrow the interval."
    return f"{sentence} {_net_by_phase(point)}".rstrip()


def _speedup_bounds(point: Point) -> str:
    speedup = point.speedup
    if speedup is None or speedup.low is None or speedup.high is None:
        return ""
    return bounds(times(speedup.low, 1), times(speedup.high, 1))


def _net_by_phase(point: Point) -> str:
    """Net loss or gain and its phases, in percentage points of the step; empty if its sign is not settled.

    Phases below one percentage point are left out.
    """
    efficiency = point.efficiency
    if efficiency is None or not is_net_settled(efficiency) or not point.loss_by_phase:
        return ""
    shares = sorted(((100 * share, name) for name, share in point.loss_by_phase.items()), reverse=True)
    parts = [f"{PHASE_NAMES[name]} costs {share:.0f}" for share, name in shares if share >= 1]
    parts += [f"{PHASE_NAMES[name]} saves {-share:.0f}" for share, name in reversed(shares) if share <= -1]
    net = 100 * (1 - efficiency.value)
    if abs(net) < 1 or not parts:
        return ""
    kind = "loss" if net > 0 else "gain"
    return f"Net {kind} of {abs(net):.0f} percentage points: {', '.join(parts)}."


def is_net_settled(efficiency: Estimate | None) -> bool:
    """Whether the interval over repeats excludes an efficiency of 100 %."""
    if (
        efficiency is None
        or efficiency.basis != "repeats"
        or efficiency.low is None
        or efficiency.high is None
    ):
        return False
    return not efficiency.low <= 1 <= efficiency.high


def base_line(curve: Curve) -> str:
    """The base with its absolute numbers; the report prints no efficiency without the base."""
    base = curve.base
    if base is None:
        return "No base: this curve has no finished run of the requested base size."
    return f"Base: {_rates(base, curve)}."


def scaling_line(curve: Curve) -> str:
    """Weak or strong scaling, and the batch size that stays the same."""
    point = curve.points[0]
    per_rank = plural(point.global_batch_size // point.devices, "sample")
    in_all = plural(point.global_batch_size, "sample")
    return {
        "weak": f"Weak scaling: {per_rank} per rank and step, so the global batch grows with the ranks.",
        "strong": f"Strong scaling: {in_all} per step over all ranks, at every size.",
        "mixed": "Neither weak nor strong: samples per rank and global batch both change with the size; "
        "efficiency compares throughput per rank.",
        "one size": f"One size: {in_all} per step over all ranks.",
    }[curve.scaling]


def _unsettled(estimate: Estimate) -> bool:
    """Whether the interval is too wide to support the estimate."""
    return estimate.low is not None and estimate.high is not None and estimate.high > WIDE * estimate.low


def headline_point(curve: Curve) -> Point | None:
    """The largest point, or the smallest if the largest is the base; None without both."""
    others = [point for point in curve.points if curve.base is not None and point.size != curve.base_size]
    largest = curve.points[-1]
    return largest if largest in others else others[0] if others else None


def _rates(point: Point, curve: Curve) -> str:
    of_dp = curve.unit == "rank" and point.devices > point.world_size
    size = plural(point.size, "GPU" if of_dp else curve.unit)
    ranks = plural(point.world_size, "rank")
    shape = f"{size} ({ranks})" if curve.unit == "node" else size
    tokens = f" ({rate(point.tokens_per_s, 'tokens/s')})" if point.tokens_per_s else ""
    return f"{shape}, {seconds(point.step_s.value)} a step, {rate(point.samples_per_s.value)}{tokens}"
