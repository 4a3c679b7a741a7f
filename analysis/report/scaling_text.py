"""Sentences on one scaling curve: loss by phase, base, batch sizes."""

from __future__ import annotations

from analysis.draw.style import PHASE_NAMES
from analysis.results.curves import Curve, Point
from analysis.stats.estimates import Estimate
from analysis.units import plural, seconds, text


def net_by_phase(point: Point) -> str:
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
    if curve.other_program:
        return "No base: the sizes ran different programs."
    if base is None:
        return "No base: this curve has no finished run of the requested base size."
    return f"Base: {_rates(base, curve)}."


def scaling_line(curve: Curve) -> str:
    """Weak or strong scaling, and the batch size that stays the same."""
    point = curve.points[0]
    per_rank = plural(point.global_batch_size // point.size, "sample")
    in_all = plural(point.global_batch_size, "sample")
    return {
        "weak": f"Weak scaling: {per_rank} per {curve.unit} and step; the global batch grows with the size.",
        "strong": f"Strong scaling: {in_all} per step over all {curve.unit}s, at every size.",
        "mixed": "Neither weak nor strong: samples per device and global batch both change with the size; "
        "efficiency compares throughput per device.",
        "one size": f"One size: {in_all} per step over all {curve.unit}s.",
    }[curve.scaling]


def _rates(point: Point, curve: Curve) -> str:
    tokens = f" ({text(point.tokens_per_s, 'tokens/s')})" if point.tokens_per_s else ""
    step = f"{seconds(point.step_s.value)} a step"
    return f"{curve.name(point)}, {step}, {text(point.samples_per_s.value, 'samples/s')}{tokens}"
