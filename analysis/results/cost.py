"""Cost of training at each measured size: time, device-hours, money and energy; the Pareto set.

With X(N) the throughput and D the number of devices at N, training on n samples takes n / X(N) seconds and
D n / X(N) / 3600 device-hours. Start-up, validation and repeated work are not part of either
(`analysis.results.goodput`). The bounds are those of the throughput. Sizes between measured ones are not
estimated.

The energy is that of the GPUs alone: hosts, network and cooling are not measured. With P the mean power of
one GPU over the measured steps, energy per sample e = P D / X (J), and carbon per sample = e / 3.6e6 x grid
intensity (g; intensity in g CO2 per kWh).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Literal

from analysis.read.price_list import PriceList
from analysis.results.caveats import WIDE, losses_apart
from analysis.results.curves import Curve, Point
from analysis.stats.estimates import Estimate, geometric_mean
from analysis.stats.verdicts import EQUIVALENCE_MARGIN
from disttrain.errors import ConfigError
from disttrain.records.metrics import Metrics

J_PER_KWH = 3.6e6
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
Meets = Literal["yes", "no", "cannot tell"]


@dataclass(frozen=True)
class SizeCost:
    """Cost of the training at one size."""

    curve: Curve
    point: Point
    time_s: Estimate
    device_hours: Estimate
    money: Estimate | None
    """In the currency of the price list; None without a price."""
    spent: Estimate
    """Money where each size has a price, else device-hours."""
    joules_per_sample: Estimate | None
    grams_per_sample: Estimate | None
    pareto: bool | None = None
    """Whether no size is faster and cheaper; null for one that is not ranked, and where one that is not
    settled may be."""

    @property
    def settled(self) -> bool:
        """Whether the size may be ranked: its time has an interval over repeats, unlike that of one repeat or
        of steps that are not stationary, whose bounds differ by less than a factor of 1.5."""
        return self.time_s.high is not None and self.time_s.high <= WIDE * self.least("time_s")

    def least(self, name: str) -> float:
        """The least that a quantity may be."""
        return getattr(self, name).low or 0.0

    def rank(self, name: str) -> float:
        """A quantity that is settled, else the least that it may be."""
        return getattr(self, name).value if self.settled else self.least(name)

    def meets(self, deadline_s: float) -> Meets:
        """Whether the training ends within the deadline; unknown where the deadline lies in the interval, and
        without an interval."""
        if (self.time_s.high or math.inf) <= deadline_s:
            return "yes"
        return "no" if self.least("time_s") > deadline_s else "cannot tell"

    def may_beat(self, other: SizeCost) -> bool:
        """Whether it is faster or cheaper than a settled size by more than the margin, and neither slower nor
        dearer; of a size that is not settled, whether it may be."""
        pairs = [(self.rank(name), other.rank(name)) for name in ("time_s", "spent")]
        most = 1 + EQUIVALENCE_MARGIN
        return all(own <= most * its for own, its in pairs) and any(most * own < its for own, its in pairs)


def size_costs(curves: Sequence[Curve], samples: float, prices: PriceList) -> list[SizeCost]:
    """Cost of training on `samples` samples at each size of the curves, real ones first."""
    hourly = [prices.price_of(curve.points[0].metrics[0].device) for curve in curves]
    costs = []
    for curve, price in zip(curves, hourly, strict=True):
        for point in curve.points:
            time_s = point.samples_per_s.inverse(samples)
            hours = time_s.scaled(point.size / 3600)
            money = None if price is None else hours.scaled(price)
            spent = hours if money is None or None in hourly else money
            joules, grid = energy_per_sample(point.metrics), prices.grid_g_per_kwh
            grams = joules.scaled(grid / J_PER_KWH) if joules and grid is not None else None
            costs.append(SizeCost(curve, point, time_s, hours, money, spent, joules, grams))
    return ranked(costs)


def ranked(costs: Sequence[SizeCost]) -> list[SizeCost]:
    """The costs with their Pareto set: real ones, then emulated ones."""
    found = []
    for emulated in (False, True):
        kind = [cost for cost in costs if cost.curve.emulated is emulated]
        alike = trained_alike(kind)
        for cost in kind:
            better = [other.settled for other in kind if other.may_beat(cost)]
            known = alike and cost.settled and (any(better) or not better)
            found.append(replace(cost, pareto=not better if known else None))
    return found


def trained_alike(costs: Sequence[SizeCost]) -> bool:
    """Whether no two of the settled sizes trained differently.

    Final losses are compared at one global batch and number of steps; of other batches they differ rightly.
    """
    pairs = combinations([cost.point for cost in costs if cost.settled], 2)
    return not any(losses_apart(*pair) for pair in pairs)


def device_watts(metrics: Metrics) -> float | None:
    """Power of one GPU over the measured steps of one run, by the energy counters where they exist, else the
    mean of the power samples; None where it was not measured."""
    gpu = metrics.gpu
    if gpu and gpu.energy_j is not None and gpu.sampled_s > 0:
        return gpu.energy_j / gpu.sampled_s / gpu.gpus
    return gpu.power_mean_w if gpu else None


def mean_watts(runs: Sequence[Metrics]) -> float | None:
    """Mean power of one GPU over repeats; None if a repeat has none."""
    powers = [watts for metrics in runs if (watts := device_watts(metrics)) is not None]
    return fmean(powers) if powers and len(powers) == len(runs) else None


def energy_per_sample(runs: Sequence[Metrics]) -> Estimate | None:
    """Joules of all GPUs per sample, geometric mean over repeats; None if a repeat has none."""
    joules = [
        watts * metrics.gpu.gpus / metrics.samples_per_s
        for metrics in runs
        if (watts := device_watts(metrics)) and metrics.gpu and metrics.samples_per_s
    ]
    return geometric_mean(joules) if joules and len(joules) == len(runs) else None


def seconds_of(deadline: str) -> float:
    """Seconds of a time with its unit: `90min`, `6h`, `1.5d`.

    Raises:
        ConfigError: it is no such time.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)\s*", deadline)
    if match is None or not float(match[1]):
        raise ConfigError(f"--deadline={deadline!r}: a time above 0 with its unit (s, min, h, d), such as 6h")
    return float(match[1]) * _SECONDS[match[2]]


def samples_of(count: str) -> float:
    """A number of samples: `50000`, `1.2e9`.

    Raises:
        ConfigError: it is no number above 0.
    """
    with contextlib.suppress(ValueError):
        if 0 < float(count) < math.inf:
            return float(count)
    raise ConfigError(f"--samples={count!r}: the samples to train on, a number above 0, such as 1.2e9")
