"""From samples to the figures of a run: each device takes one sample at a time, and devices are put together.

Segments are numbered runs of measured steps without a validation in between; a sample outside of them, for
instance in the warm-up, has the segment None. The statistics are

- `mean`, `min`, `max`: over all samples of all devices
- `growth`: highest less lowest reading of each device, summed over devices that have the field
- `segment_growth`: growth between consecutive samples of one segment, summed over segments and devices; null
  where a device has none. A counter that was reset loses one interval.
- `counts`: how often each entry of a list occurs
- `shares`: `counts` / samples that have the list
- `zeros`: share of the samples that are 0
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from disttrain.errors import in_one_line
from disttrain.hardware.fields import Field, Statistic
from disttrain.records.hardware import GpuSummary, ProcessSummary

NOT_IN_MEASURED_STEPS = "no sample fell into measured steps"


@dataclass
class Tally:
    """Running statistics of one figure on one device."""

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    zeros: int = 0
    segment_growth: float | None = None
    entries: Counter[str] = field(default_factory=Counter)
    _last: float = 0
    _segment: int | None = None

    def add(self, value: Any, segment: int | None) -> None:
        """Take the value of the next sample: a number, a list, or None."""
        if isinstance(value, list):
            self.entries.update(map(str, value))
        elif value is not None:
            self.total += value  # raises for a text, before anything counts
            self.zeros += value == 0
            self.least, self.most = min(self.least, value), max(self.most, value)
            if segment is not None and segment == self._segment and value >= self._last:
                self.segment_growth = (self.segment_growth or 0) + value - self._last
            self._last = value
        self._segment = None if value is None else segment
        self.count += value is not None


@dataclass
class DeviceSamples:
    """The samples of one GPU, rank's process or link so far."""

    name: str = ""
    constants: dict[str, Any] = field(default_factory=dict)
    """Constants of the device, to which figures may be relative."""
    unsupported: dict[str, str] = field(default_factory=dict)
    """Reason of each field that will never have a value."""
    errors: dict[str, str] = field(default_factory=dict)
    """First error of each other field."""
    lost: str | None = None
    """NVML's error when the GPU fell off the bus; a lost GPU is not read again."""
    clock: Tally = field(default_factory=Tally)
    """Of `at_s` in measured steps."""
    figures: dict[str, Tally] = field(default_factory=dict)

    def add(self, fields: Sequence[Field], sample: Mapping[str, Any], segment: int | None) -> None:
        """Take the next sample, of that segment of measured steps, if any."""
        if segment is not None:
            self.clock.add(sample["at_s"], segment)
        for row in fields:
            if segment is None and not row.whole_attempt:
                continue
            value = sample.get(row.name)
            try:
                if row.relative_to is not None:
                    unit = sample.get(row.relative_to) or self.constants.get(row.relative_to)
                    value = value / unit if value is not None and unit else None
                for name in row.figures:
                    self.figures.setdefault(name, Tally()).add(value, segment)
            except Exception as error:  # the reader of a user may give anything
                self.errors = {row.name: in_one_line(error), **self.errors}

    def grown(self, name: str) -> float:
        """`segment_growth` of a figure, 0 without any."""
        return self.figures.get(name, Tally()).segment_growth or 0


def _entries(tallies: Sequence[Tally]) -> list[tuple[str, int]]:
    return sorted(sum((each.entries for each in tallies), Counter()).items())


def _count(tallies: Sequence[Tally]) -> int:
    return sum(each.count for each in tallies)


def _segment_growth(tallies: Sequence[Tally]) -> float | None:
    grown = [each.segment_growth for each in tallies if each.segment_growth is not None]
    return sum(grown) if len(grown) == len(tallies) else None


_FIGURES: dict[Statistic, Callable[[Sequence[Tally]], Any]] = {
    "mean": lambda tallies: sum(each.total for each in tallies) / _count(tallies),
    "min": lambda tallies: min(each.least for each in tallies),
    "max": lambda tallies: max(each.most for each in tallies),
    "growth": lambda tallies: sum(each.most - each.least for each in tallies if each.count),
    "segment_growth": _segment_growth,
    "zeros": lambda tallies: sum(each.zeros for each in tallies) / _count(tallies),
    "counts": lambda tallies: dict(_entries(tallies)),
    "shares": lambda tallies: {name: count / _count(tallies) for name, count in _entries(tallies)},
}


def gpu_summary(fields: Sequence[Field], gpus: Sequence[DeviceSamples]) -> tuple[GpuSummary, dict[str, str]]:
    """The figures over all GPUs, and the reason of each that is null."""
    rows = [row for row in fields if row.of == "gpu"]
    values, reasons = _figures("gpu", rows, gpus, "no GPU reports it")
    lost = sum(gpu.lost is not None for gpu in gpus)
    sampled_s = sum(gpu.clock.segment_growth or 0.0 for gpu in gpus) / len(gpus)
    return GpuSummary(gpus=len(gpus), gpus_lost=lost, sampled_s=sampled_s, **values), reasons


def process_summary(
    fields: Sequence[Field], ranks: Sequence[DeviceSamples]
) -> tuple[ProcessSummary, dict[str, str]]:
    """The figures over all ranks' processes, and the reason of each that is null."""
    rows = [row for row in fields if row.of in ("process", "host")]
    values, reasons = _figures("processes", rows, ranks, "the system does not report it")
    return ProcessSummary(ranks=len(ranks), **values), reasons


def _figures(
    summary: str, fields: Sequence[Field], devices: Sequence[DeviceSamples], absent: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """The number of samples and each figure over the devices, and the reason of each that is null: a reader's
    first error, `absent`, a device without growth, or that no sample counts."""
    samples = _count([device.clock for device in devices])
    values: dict[str, Any] = {"samples": samples}
    reasons: dict[str, str] = {}
    for row in fields:
        errors = [device.errors[row.name] for device in devices if row.name in device.errors]
        for name, statistic in row.figures.items():
            tallies = [device.figures.get(name, Tally()) for device in devices]
            values[name] = _FIGURES[statistic](tallies) if _count(tallies) else None
            if values[name] is not None:
                continue
            reason = "a device without two samples in one segment" if _count(tallies) else absent
            if not samples and not row.whole_attempt:
                reason = NOT_IN_MEASURED_STEPS
            reasons[f"{summary}.{name}"] = [*errors, reason][0]
    return values, reasons
