"""Values of config options that other configurations of a sweep measured at the same size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analysis.efficiency import Curve, Point, rate_ratio


class MeasuredValue(NamedTuple):
    """A value of an option, and the throughput with it."""

    value: str
    ratio: float
    """Throughput with this value, divided by that of the compared point."""


def measured_values(curve: Curve, point: Point, curves: Sequence[Curve]) -> dict[str, list[MeasuredValue]]:
    """Other values of each option, by dotted key, where no other option of the sweep differs."""
    found: dict[str, list[MeasuredValue]] = {}
    for other in curves:
        if other.sweep != curve.sweep or other.emulated != curve.emulated:
            continue
        keys = [key for key in curve.axes | other.axes if curve.axes.get(key) != other.axes.get(key)]
        if len(keys) != 1 or keys[0] not in other.axes:
            continue
        (key,) = keys
        found.setdefault(key, []).extend(
            MeasuredValue(str(other.axes[key]), rate_ratio(each, point).value)
            for each in other.points
            if (each.nodes, each.devices) == (point.nodes, point.devices)
        )
    return found
