"""Waterfall of a step: seconds that each phase adds to, or saves from, the step that the base predicts.

The phases k partition the step T(N). With w = samples per rank and step at N / those at the base N0, the
ideal step is T*(N) = w T(N0), and

    delta_k = t_k(N) - w t_k(N0)        sum of delta_k + delta_residual = T(N) - T*(N)
    share_k = delta_k / T(N)            sum of share_k + share_residual = 1 - E(N)

`residual` is the part of the recorded step that no phase covers. A negative delta is a gain. Every other unit
of the waterfall is the same delta times one factor (`Scale`), so each column sums as exactly.

The phases are means over ranks: the extra compute of one slow rank appears as waiting of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.efficiency import Curve, Point
from analysis.stats.estimates import Estimate, geometric_mean, not_stationary, ratio_of_means, t_quantile
from disttrain.records.gpu_hours import devices_of, unit_of
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json_or_none
from disttrain.records.steps import PHASES

Floats = NDArray[np.float64]

RESIDUAL = "residual"
"""Name of the part that no phase covers."""
PERSISTENT, TRANSIENT = "persistent_wait_s", "transient_wait_s"
"""Parts of `comm_wait_s` after `split_waiting`."""
ORDER = (
    "input_s",
    "compute_s",
    PERSISTENT,
    TRANSIENT,
    "comm_wait_s",
    "comm_transfer_s",
    "optimizer_s",
    "checkpoint_s",
    "other_s",
    RESIDUAL,
)
"""Order of the bars, the same for all sizes and sweeps, so that waterfalls compare."""


def has_phases(point: Point) -> bool:
    """Whether the runs recorded a phase; `other_s` alone is the whole step."""
    return any(seconds for name, seconds in point.composition.items() if name != "other_s")


@dataclass(frozen=True)
class PhaseTimes:
    """Mean step of each repeat at one size, in seconds, and its phases."""

    step_s: Floats
    """Shape (repeats,)."""
    phases: Mapping[str, Floats]
    """By phase, each of shape (repeats,); zero where a phase was not measured."""
    ranks: int
    samples: int
    """Samples per step over all ranks."""
    devices: int
    """GPUs of the run, or ranks where it has none."""
    stationary: bool = True
    """Whether the means of all repeats are of stationary steps; otherwise no mean has an interval."""
    floor_s: Floats | None = None
    """Noise floor of waiting that counts as transfer, of shape (repeats,); None where it is unknown."""

    def mean_share(self, seconds: Floats) -> Estimate:
        """Mean of `seconds` / mean of `step_s` over repeats, both of shape (repeats,)."""
        share = ratio_of_means(seconds, self.step_s)
        return share if self.stationary else not_stationary(share)

    def share_of_step(self, names: Sequence[str]) -> Estimate:
        """Share of the step in these phases, by the ratio of sums of the same repeats."""
        return self.mean_share(np.sum([self.phases[name] for name in names], axis=0))

    @property
    def mean_step_s(self) -> float:
        """Geometric mean over repeats: the step of the scaling table."""
        return geometric_mean(self.step_s).value

    @property
    def parts(self) -> dict[str, Floats]:
        """The phases and the residual; they sum to `step_s` in every repeat."""
        return _parts(self.phases, self.step_s)

    @property
    def mean_parts(self) -> dict[str, float]:
        """Seconds of `mean_step_s` in each part, by the part's share of all repeats' seconds."""
        scale = self.mean_step_s / float(np.mean(self.step_s))
        return {name: scale * float(np.mean(values)) for name, values in self.parts.items()}


@dataclass(frozen=True)
class Part:
    """One bar of a waterfall."""

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
    devices: int
    """GPUs of the run, or ranks where it has none."""
    samples: int
    """Samples per step over all ranks."""
    base_parts_s: Mapping[str, float]
    """Seconds of the ideal step in each part: those of the base times the ratio of the work."""

    @property
    def efficiency(self) -> float:
        return self.ideal_s / self.actual_s

    @property
    def closing_error_s(self) -> float:
        """Actual minus ideal minus the sum of the parts: zero but for rounding."""
        return self.actual_s - self.ideal_s - math.fsum(part.seconds.value for part in self.parts)


@dataclass(frozen=True)
class Scale:
    """One unit of a waterfall: seconds per step times `factor`."""

    name: str
    unit: str
    factor: float


def phase_times(point: Point, curve: Curve, table: pd.DataFrame) -> PhaseTimes:
    """Phases of every repeat of a point.

    Args:
        point: a point of `curve`.
        table: of `analysis.read.load.load`, with the runs of the point.
    """
    rows = table[(table["sweep"] == curve.sweep) & table["run"].isin(point.runs)]
    rows = rows.set_index("run").loc[list(point.runs)]
    step_s = point.global_batch_size / rows["samples_per_s"].to_numpy(dtype=np.float64)
    phases = {name: rows[name].fillna(0.0).to_numpy(dtype=np.float64) for name in PHASES}
    stationary = point.samples_per_s.basis != "not stationary"
    devices = devices_of_run(rows)
    return PhaseTimes(step_s, phases, point.world_size, point.global_batch_size, devices, stationary)


def devices_of_run(rows: pd.DataFrame) -> int:
    """GPUs of the repeats in these rows, or ranks where they have none; ranks where `run.json` is missing."""
    first = rows.iloc[0]
    record = read_run_json_or_none(RunDir(Path(first["path"])))
    try:
        if record is None:
            return int(first["world_size"])
        device = first["device"]
        return devices_of(record, unit_of(record, device if isinstance(device, str) else None))
    except (KeyError, TypeError, ValueError):
        return int(first["world_size"])


def split_waiting(times: PhaseTimes, persistent: Floats) -> PhaseTimes:
    """The times with waiting as two phases: for ranks that are always slow, and for late ones in turn.

    Args:
        persistent: share of the waiting of each repeat that is persistent
            (`analysis.stragglers.persistence`), shape (repeats,).
    """
    wait_s = times.phases["comm_wait_s"]
    split = {PERSISTENT: persistent * wait_s, TRANSIENT: (1 - persistent) * wait_s}
    rest = {name: seconds for name, seconds in times.phases.items() if name != "comm_wait_s"}
    return replace(times, phases=rest | split)


def _parts(phases: Mapping[str, Floats], step_s: Floats) -> dict[str, Floats]:
    """The phases and the rest of the step."""
    return {**phases, RESIDUAL: step_s - np.sum(list(phases.values()), axis=0)}


def waterfall(point: PhaseTimes, base: PhaseTimes) -> Waterfall:
    """The waterfall of `point` against `base`, which have the same phases.

    Intervals have the repeat as their unit.
    """
    work = (point.samples / point.ranks) / (base.samples / base.ranks)
    actual_s, ideal_s = point.mean_step_s, work * base.mean_step_s
    means, ideal_parts = point.mean_parts, {name: work * s for name, s in base.mean_parts.items()}
    parts = []
    for name in (name for name in ORDER if name in means):
        delta_s = means[name] - ideal_parts[name]
        own, others = point.parts[name], work * base.parts[name]
        seconds = _with_interval(delta_s, own, others)
        share = delta_s / actual_s  # a ratio: its variance by linearization
        linear = (own - share * point.step_s) / actual_s
        shares = _with_interval(share, linear, others / actual_s)
        if not (point.stationary and base.stationary):
            seconds, shares = not_stationary(seconds), not_stationary(shares)
        parts.append(Part(name, seconds, shares))
    return Waterfall(ideal_s, actual_s, tuple(parts), point.devices, point.samples, ideal_parts)


def scales(
    found: Waterfall, steps: int = 1000, price_per_hour: float | None = None, watts: float | None = None
) -> list[Scale]:
    """Units of a waterfall; device-hours, money and joules are those of `steps` steps.

    Args:
        steps: number of steps that device-hours, money and joules count.
        price_per_hour: of one device; None leaves money out.
        watts: mean power of one device; None leaves joules out.
    """
    hours = found.devices * steps / 3600
    units = [
        Scale("seconds", "s per step", 1.0),
        Scale("percent", "% of the step", 100 / found.actual_s),
        Scale("throughput", "samples/s lost", found.samples / found.ideal_s / found.actual_s),
        Scale("device_hours", f"device-hours per {steps:,} steps", hours),
    ]
    if price_per_hour is not None:
        units.append(Scale("money", f"per {steps:,} steps", hours * price_per_hour))
    if watts is not None:
        units.append(Scale("energy", f"J per {steps:,} steps", found.devices * steps * watts))
    return units


def from_peak(found: Waterfall, model_flops_per_sample: float, peak_flops: float) -> dict[str, float]:
    """Bars from the step at peak FLOP/s to the actual step, in seconds.

    `peak` is the time of the model's FLOPs at the device's peak, so MFU = `peak` / actual step. `kernels` is
    the ideal step's compute beyond the peak; `base.<phase>` are the other phases of the ideal step; the
    phases' own names are the losses of scaling. The bars sum to the actual step.

    Args:
        model_flops_per_sample: FLOPs of training on one sample.
        peak_flops: peak dense FLOP/s of one device.

    Raises:
        ValueError: a rate is not positive.
    """
    if model_flops_per_sample <= 0 or peak_flops <= 0:
        raise ValueError("FLOPs per sample and peak FLOP/s must be positive")
    peak_s = model_flops_per_sample * found.samples / (found.devices * peak_flops)
    base = dict(found.base_parts_s)
    bars = {"peak": peak_s, "kernels": base.pop("compute_s") - peak_s}
    bars |= {f"base.{name}": seconds for name, seconds in base.items()}
    return bars | {part.name: part.seconds.value for part in found.parts}


def _with_interval(value: float, own: Floats, base: Floats) -> Estimate:
    """`value` with the t interval of mean(own) - mean(base) over repeats."""
    repeats = min(len(own), len(base))
    if repeats < 2:
        return Estimate(value, None, None, repeats)
    half = _half_width([(float(np.var(each, ddof=1)) / len(each), len(each) - 1.0) for each in (own, base)])
    return Estimate(value, value - half, value + half, repeats)


def _half_width(moments: Sequence[tuple[float, float]]) -> float:
    """Of the t interval of a sum of means with these variances and degrees of freedom, by Welch (1947)."""
    total = sum(variance for variance, _ in moments)
    if total == 0:
        return 0.0
    shares = [(variance / total, freedom) for variance, freedom in moments]  # tiny squares would be 0
    freedom = 1 / sum(share**2 / freedom for share, freedom in shares)
    return float(t_quantile(freedom)) * math.sqrt(total)
