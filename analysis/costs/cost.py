"""Cost of training at each measured size: time, device-hours and money; Pareto set; cheapest size in time.

With X(N) the throughput and D the number of devices at N, training on n samples takes n / X(N) seconds and
D n / X(N) / 3600 device-hours. Start-up, validation and repeated work are not part of either
(`analysis.results.goodput`). The bounds are those of the throughput. Sizes between measured ones are not
estimated.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.efficiency import Curve, Point
from analysis.stats.estimates import Estimate
from disttrain.errors import ConfigError

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
Meets = Literal["yes", "no", "undecided"]


@dataclass(frozen=True)
class SizeCost:
    """Cost of the training at one size."""

    size: int
    """Nodes or ranks, as `Curve.unit`."""
    devices: int
    time_s: Estimate
    device_hours: Estimate
    money: Estimate | None
    """In the currency of the price list; None without a price."""
    meets: Meets | None
    """Whether the training ends within the deadline; `undecided` where the deadline lies in the interval, and
    without an interval. None without a deadline."""


def seconds_of(deadline: str) -> float:
    """Seconds of a time with its unit: `90min`, `6h`, `1.5d`.

    Raises:
        ConfigError: it is no such time.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)\s*", deadline)
    if found is None or not float(found[1]):
        raise ConfigError(f"--deadline={deadline!r}: a time above 0 with its unit (s, min, h, d), such as 6h")
    return float(found[1]) * _SECONDS[found[2]]


def samples_of(count: str) -> float:
    """A number of samples: `50000`, `1.2e9`.

    Raises:
        ConfigError: it is no number above 0.
    """
    with contextlib.suppress(ValueError):
        if 0 < float(count) < math.inf:
            return float(count)
    raise ConfigError(f"--samples={count!r}: the samples to train on, a number above 0, such as 1.2e9")


def size_costs(
    curve: Curve,
    samples: float,
    devices: Mapping[int, int],
    *,
    price_per_hour: float | None = None,
    deadline_s: float | None = None,
) -> list[SizeCost]:
    """Cost of training on `samples` samples at each size of the curve, smallest first.

    Args:
        devices: number of devices by `Point.size`.
        price_per_hour: of one device; None without a price.
        deadline_s: seconds that the training may take.
    """

    def cost_of(point: Point) -> SizeCost:
        count, time = devices[point.size], point.samples_per_s.inverse(samples)
        hours = time.scaled(count / 3600)
        return SizeCost(
            size=point.size,
            devices=count,
            time_s=time,
            device_hours=hours,
            money=None if price_per_hour is None else hours.scaled(price_per_hour),
            meets=None if deadline_s is None else _meets(time, deadline_s),
        )

    return [cost_of(point) for point in curve.points]


def pareto(points: Sequence[tuple[float, float]], margin: float = 0.0) -> list[bool]:
    """Whether no other point is smaller in one coordinate and not larger in the other.

    `margin` is a fraction: smaller differences are none.
    """
    least, most = 1 / (1 + margin), 1 + margin
    return [
        not any(a <= most * x and b <= most * y and (a < least * x or b < least * y) for a, b in points)
        for x, y in points
    ]


def cheapest(costs: Sequence[SizeCost]) -> SizeCost | None:
    """The size of fewest device-hours whose interval is within the deadline; None without one."""
    in_time = [cost for cost in costs if cost.meets == "yes"]
    return min(in_time, key=lambda cost: (cost.device_hours.value, cost.time_s.value), default=None)


def _meets(time: Estimate, deadline_s: float) -> Meets:
    low, high = time.low, time.high
    if low is None or high is None:
        return "undecided"
    return "yes" if high <= deadline_s else "no" if low > deadline_s else "undecided"
