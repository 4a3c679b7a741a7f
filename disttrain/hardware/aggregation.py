"""From samples to the figures of a run: accumulators take one sample at a time and merge over GPUs and ranks.

Segments are numbered runs of measured steps without a validation in between; a sample outside of them, for
instance in the warm-up, has the segment None. The statistics are

- `mean`, `min`, `max`: over all samples of all devices
- `growth`: last less first reading of each device, summed over devices that have the field
- `segment_growth`: growth between consecutive samples of one segment, summed over segments and devices; null
  where a device has none
- `counts`: how often each entry of a list occurs
- `shares`: `counts` / samples that have the list
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from disttrain.hardware.sampled_fields import GPU_FIELDS, PROCESS_FIELDS, Field, Statistic
from disttrain.records.hardware import GpuSample, GpuSummary, HostSample, ProcessSummary

NOT_IN_MEASURED_STEPS = "no sample fell into measured steps"
S = TypeVar("S", GpuSample, HostSample)


@dataclass
class Accumulated:
    """Running statistics of one figure's values on one device."""

    count: int = 0
    total: float = 0.0
    least: float | None = None
    most: float | None = None
    first: float | None = None
    last: float | None = None
    grown: float | None = None
    """Growth within segments."""
    entries: Counter[str] = field(default_factory=Counter)
    _segment: int | None = None

    def add(self, value: Any, segment: int | None) -> None:
        """Take the value of the next sample: a number, a list, or None."""
        if isinstance(value, list):
            self.count += 1
            self.entries.update(map(str, value))
            return
        if value is not None:
            self.count += 1
            self.total += value
            self.least = value if self.least is None else min(self.least, value)
            self.most = value if self.most is None else max(self.most, value)
            if self.first is None:
                self.first = value
            if segment is not None and segment == self._segment and self.last is not None:
                self.grown = (self.grown or 0.0) + value - self.last
            self.last = value
        self._segment = None if value is None else segment


def _mean(devices: Sequence[Accumulated]) -> float | None:
    count = sum(each.count for each in devices)
    return sum(each.total for each in devices) / count if count else None


def _growth(devices: Sequence[Accumulated]) -> float | None:
    grown = [each.last - each.first for each in devices if each.first is not None and each.last is not None]
    return sum(grown) if grown else None


def _segment_growth(devices: Sequence[Accumulated]) -> float | None:
    grown = [each.grown for each in devices if each.grown is not None]
    return sum(grown) if len(grown) == len(devices) else None


def _counts(devices: Sequence[Accumulated]) -> dict[str, int] | None:
    if not any(each.count for each in devices):
        return None
    return dict(sorted(sum((each.entries for each in devices), Counter()).items()))


def _shares(devices: Sequence[Accumulated]) -> dict[str, float] | None:
    counts, samples = _counts(devices), sum(each.count for each in devices)
    return None if counts is None else {name: count / samples for name, count in counts.items()}


_OVER_DEVICES: dict[Statistic, Callable[[Sequence[Accumulated]], Any]] = {
    "mean": _mean,
    "min": lambda devices: min((each.least for each in devices if each.least is not None), default=None),
    "max": lambda devices: max((each.most for each in devices if each.most is not None), default=None),
    "growth": _growth,
    "segment_growth": _segment_growth,
    "counts": _counts,
    "shares": _shares,
}


@dataclass
class Accumulator(Generic[S]):
    """The samples of one GPU or process so far."""

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    constants: dict[str, float | None] = field(default_factory=dict)
    """Constants of the device that figures are relative to."""
    samples: int = 0
    """Samples in measured steps."""
    clock: Accumulated = field(default_factory=Accumulated)
    """Of `at_s` in measured steps."""
    figures: dict[str, Accumulated] = field(default_factory=dict)

    def add(self, sample: S, segment: int | None) -> None:
        """Take the next sample, of that segment of measured steps, if any."""
        if segment is not None:
            self.samples += 1
            self.clock.add(sample.at_s, segment)
        for each in self.FIELDS:
            reading = getattr(sample, each.name)
            for figure in each.figures:
                if segment is None and not figure.whole_attempt:
                    continue
                value = reading
                if figure.relative_to is not None:
                    unit = getattr(sample, figure.relative_to, None) or self.constants.get(figure.relative_to)
                    value = reading / unit if reading is not None and unit else None
                if figure.name not in self.figures:
                    self.figures[figure.name] = Accumulated()
                self.figures[figure.name].add(value, segment)


@dataclass
class GpuAccumulator(Accumulator[GpuSample]):
    """The samples of one GPU so far."""

    FIELDS: ClassVar[tuple[Field, ...]] = GPU_FIELDS
    device: str = ""
    """The GPU's name within the run."""
    lost: bool = False
    """Whether the GPU fell off the bus."""


@dataclass
class ProcessAccumulator(Accumulator[HostSample]):
    """The samples of one rank's process so far."""

    FIELDS: ClassVar[tuple[Field, ...]] = PROCESS_FIELDS
    errors: dict[str, str] = field(default_factory=dict)
    """The reader's first error of each field."""


def gpu_summary(gpus: Sequence[GpuAccumulator]) -> tuple[GpuSummary, dict[str, str]]:
    """The figures over all GPUs, and the reason of each that is null."""
    figures, reasons = _over_devices(GPU_FIELDS, gpus, "no GPU reports it")
    sampled_s = [gpu.clock.grown or 0.0 for gpu in gpus]
    if figures["energy_j"] is None and reasons["energy_j"] != NOT_IN_MEASURED_STEPS:
        reasons["energy_j"] = (
            "a GPU without an energy counter"
            if all(sampled_s)
            else "a GPU without two samples in one segment of measured steps"
        )
    summary = GpuSummary(
        gpus=len(gpus),
        gpus_lost=sum(gpu.lost for gpu in gpus),
        samples=sum(gpu.samples for gpu in gpus),
        sampled_s=sum(sampled_s) / len(gpus),
        **figures,
    )
    return summary, {f"gpu.{name}": why for name, why in reasons.items()}


def process_summary(ranks: Sequence[ProcessAccumulator]) -> tuple[ProcessSummary, dict[str, str]]:
    """The figures over all ranks' processes, and the reason of each that is null."""
    figures, reasons = _over_devices(PROCESS_FIELDS, ranks, "the system does not report it")
    for each in PROCESS_FIELDS:
        errors = [rank.errors[each.name] for rank in ranks if each.name in rank.errors]
        for figure in each.figures:
            if errors and reasons.get(figure.name, NOT_IN_MEASURED_STEPS) != NOT_IN_MEASURED_STEPS:
                reasons[figure.name] = errors[0]
    summary = ProcessSummary(ranks=len(ranks), samples=sum(rank.samples for rank in ranks), **figures)
    return summary, {f"processes.{name}": why for name, why in reasons.items()}


def _over_devices(
    fields: Sequence[Field], devices: Sequence[Accumulator[Any]], absent: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Each figure over the devices, and the reason of each that is null: `absent`, or that no sample
    counts."""
    empty = Accumulated()
    figures: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    measured = any(device.samples for device in devices)
    for figure in (figure for each in fields for figure in each.figures):
        values = [device.figures.get(figure.name, empty) for device in devices]
        figures[figure.name] = _OVER_DEVICES[figure.statistic](values)
        if figures[figure.name] is None:
            reasons[figure.name] = absent if measured or figure.whole_attempt else NOT_IN_MEASURED_STEPS
    return figures, reasons
