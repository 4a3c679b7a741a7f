"""Waterfall of a step: seconds that each phase adds to, or saves from, the step that the base predicts.

The phases k partition the step T(N). With w = samples per device and step at N / those at the base N0, the
ideal step is T*(N) = w T(N0), and

    delta_k = t_k(N) - w t_k(N0)        sum of delta_k = T(N) - T*(N)
    share_k = delta_k / T(N)            sum of share_k = 1 - E(N)

A negative delta is a gain. Every other unit of the waterfall is the same delta times one factor (`scales`),
so each column sums as exactly. The phases are means over ranks: the extra compute of one slow rank appears as
waiting of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.results.curves import Curve, Point
from analysis.results.phases import PERSISTENT, TRANSIENT, WAIT, Floats, Phases
from analysis.stats.estimates import Estimate
from analysis.study import Study

ORDER = (
    "input_s",
    "compute_s",
    PERSISTENT,
    TRANSIENT,
    WAIT,
    "comm_transfer_s",
    "optimizer_s",
    "checkpoint_s",
    "other_s",
)
"""Order of the parts, the same for all sizes and sweeps, so that waterfalls compare."""
NAMED = 0.01
"""Losses and gains from this share of the step on are named in sentences."""
SHOWN = 0.001
"""Parts below this share of the step have no row and no bar."""


@dataclass(frozen=True)
class Part:
    """One part of the difference between the actual and the ideal step."""

    name: str
    seconds: Estimate
    """Seconds per step beyond the ideal; negative for a gain."""
    share: Estimate
    """`seconds` as a share of the actual step."""


@dataclass(frozen=True)
class Waterfall:
    """From the ideal to the actual step at one size."""

    ideal_s: float
    actual_s: float
    parts: tuple[Part, ...]
    """In `ORDER`."""
    ideal_parts_s: Mapping[str, float]
    """Seconds of the ideal step in each part: those of the base times the ratio of the work."""

    @property
    def efficiency(self) -> float:
        return self.ideal_s / self.actual_s

    @property
    def shown(self) -> list[Part]:
        """The parts from `SHOWN` on."""
        return [part for part in self.parts if abs(part.share.value) >= SHOWN]


@dataclass(frozen=True)
class SizeWaterfall:
    """The waterfall of one point against the base of its curve."""

    curve: Curve
    point: Point
    parts: Waterfall
    """With persistent and transient waiting where they can be told apart."""
    whole: Waterfall
    """With waiting as one part: sentences name phases, and its parts vary against each other over repeats."""


def waterfall(point: Phases, base: Phases, work: float) -> Waterfall:
    """The waterfall of `point` against `base`.

    Args:
        work: samples per device and step at the point / those at the base.
    """
    point = replace(point, stationary=point.stationary and base.stationary)
    actual_s, ideal_s = point.mean_step_s, work * base.mean_step_s
    names = [name for name in ORDER if name in point.seconds or name in base.seconds]
    ideal = {name: work * base.scaled(name) for name in names}
    parts = []
    for name in names:
        own, least_s = point.scaled(name), float(ideal[name].mean())
        delta_s = float(own.mean()) - least_s
        share = delta_s / actual_s
        seconds = point.interval(delta_s, own, ideal[name], 0 - least_s)
        linear = point.linearized(point.array(name), share)
        shares = point.interval(share, linear, ideal[name] / actual_s, (0 - least_s) / actual_s)
        parts.append(Part(name, seconds, shares))
    return Waterfall(
        ideal_s, actual_s, tuple(parts), {name: float(each.mean()) for name, each in ideal.items()}
    )


def waterfalls(study: Study) -> list[SizeWaterfall]:
    """Waterfalls of all points that have a base, in the order of curves and sizes."""
    return [
        size_waterfall(study, curve, point, base)
        for curve in study.curves
        if (base := curve.base) is not None and base.phases.known
        for point in curve.points
        if point is not base and point.phases.known
    ]


def size_waterfall(study: Study, curve: Curve, point: Point, base: Point) -> SizeWaterfall:
    """The waterfall of one point, with waiting divided where the records of both sizes show late ranks."""
    work = point.work_ratio(base)
    whole = waterfall(point.phases, base.phases, work)
    divided = [divided_waiting(study, each) for each in (point, base)]
    phases, before = divided
    parts = whole if phases is None or before is None else waterfall(phases, before, work)
    return SizeWaterfall(curve, point, parts, whole)


def divided_waiting(study: Study, point: Point) -> Phases | None:
    """The phases with waiting as a persistent and a transient part; None where it cannot be divided."""
    shares = _persistent_shares(study, point)
    return None if shares is None else point.phases.with_divided_waiting(shares)


def _persistent_shares(study: Study, point: Point) -> Floats | None:
    """Share of each repeat's waiting that is persistent; None where the ranks' records show no late rank."""
    if point.world_size == 1:
        return np.zeros(len(point.runs))
    losses = [study.rank_steps[run.path].loss for run in point.runs if run.path in study.rank_steps]
    known = WAIT in point.phases.seconds and len(losses) == len(point.runs)
    if not known or any(loss.total_s <= 0 for loss in losses):
        return None
    return np.array([loss.persistent_s / loss.total_s for loss in losses])


def leading(sizes: Sequence[SizeWaterfall]) -> SizeWaterfall:
    """The largest size of the curve with the highest throughput there."""
    last = {id(each.curve): each for each in sizes}
    return max(last.values(), key=lambda each: each.point.samples_per_s.value)


def largest_loss(shown: SizeWaterfall) -> Part | None:
    """The largest loss whose interval excludes zero; None if it is below `NAMED`."""
    settled = [part for part in shown.whole.parts if part.share.low is None or part.share.low > 0]
    largest = max(settled, key=lambda part: part.share.value, default=None)
    return largest if largest is not None and largest.share.value >= NAMED else None


def scales(
    shown: SizeWaterfall, steps: int = 1000, price_per_hour: float | None = None, watts: float | None = None
) -> dict[str, float]:
    """Factors from seconds per step to other units of a waterfall.

    Args:
        steps: number of steps that device-hours, money and joules count.
        price_per_hour: of one device; None leaves money out.
        watts: mean power of one device; None leaves joules out.
    """
    point, whole = shown.point, shown.whole
    hours = point.size * steps / 3600
    factors = {
        "throughput": point.global_batch_size / whole.ideal_s / whole.actual_s,
        "device_hours": hours,
    }
    if price_per_hour is not None:
        factors["money"] = hours * price_per_hour
    if watts is not None:
        factors["energy"] = point.size * steps * watts
    return factors


def from_peak(found: Waterfall, peak_s: float) -> dict[str, float]:
    """Parts from the step at peak FLOP/s to the actual step, in seconds; they sum to the actual step.

    MFU is `peak` / actual step. `kernels` is the ideal step's compute beyond the peak, `base.<phase>` the
    other phases of the ideal step, and the phases' own names the losses of scaling.

    Args:
        peak_s: time of the model's FLOPs of a step at the devices' peak.
    """
    ideal = dict(found.ideal_parts_s)
    parts = {"peak": peak_s, "kernels": ideal.pop("compute_s", 0.0) - peak_s}
    parts |= {f"base.{name}": seconds for name, seconds in ideal.items()}
    return parts | {part.name: part.seconds.value for part in found.parts}
