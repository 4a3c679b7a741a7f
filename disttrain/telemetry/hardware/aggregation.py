"""From samples to the figures of a run: tallies that grow by one sample at a time, and merge over nodes.

A segment is a run of measured steps without a validation in between, by number; a sample outside of one (in
the warm-up, say) has none. Means are over samples in stretches, and a counter's growth counts between two
samples of the same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from disttrain.records.hardware import GpuSample, GpuSummary, HostSample, ProcessSummary

_RATES = ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
_NO_TELLING = "no GPU told it"
_READ_AS = {"cpu_percent": "cpu_percent", "rss_peak_bytes": "rss_bytes", "threads_max": "threads"}
"""Figures of processes, by the field of a sample that they are made of."""


@dataclass
class Series:
    """Sum, count and extremes of what was there."""

    total: float = 0.0
    count: int = 0
    least: float | None = None
    most: float | None = None

    def add(self, value: float | None) -> None:
        if value is not None:
            self.join(Series(value, 1, value, value))

    def join(self, other: Series) -> None:
        self.total += other.total
        self.count += other.count
        self.least = _either(min, self.least, other.least)
        self.most = _either(max, self.most, other.most)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass
class GpuAccumulator:
    """One GPU's samples so far. `device` names it among those of the run; `sm_clock_max_mhz` is its own."""

    device: str
    sm_clock_max_mhz: float | None
    lost: bool = False
    samples: int = 0
    sampled_s: float = 0.0
    energy_j: float | None = None
    throttled: Counter[str] = field(default_factory=Counter)
    throttle_samples: int = 0
    xids: Counter[str] | None = None
    ecc: dict[str, tuple[int, int]] = field(default_factory=dict)
    """First and last count of each kind."""
    series: dict[str, Series] = field(default_factory=dict)
    _last: GpuSample | None = None
    _segment: int | None = None

    def add(self, sample: GpuSample, segment: int | None) -> None:
        """Take the next sample, of that segment of measured steps, if any."""
        self._note("memory_used_bytes", sample.memory_used_bytes)
        self._note("temperature_c", sample.temperature_c)
        for name in ("ecc_corrected", "ecc_uncorrected"):
            if (count := getattr(sample, name)) is not None:
                first, _ = self.ecc.get(name, (count, count))
                self.ecc[name] = (first, count)
        if sample.xids is not None:
            self.xids = (self.xids or Counter()) + Counter(map(str, sample.xids))
        if segment is not None:
            self._measure(sample)
            if self._last is not None and segment == self._segment:
                self.sampled_s += sample.at_s - self._last.at_s
                if sample.energy_j is not None and self._last.energy_j is not None:
                    self.energy_j = (self.energy_j or 0.0) + sample.energy_j - self._last.energy_j
        self._last, self._segment = sample, segment

    def _measure(self, sample: GpuSample) -> None:
        self.samples += 1
        for name in ("utilization", "power_w", *_RATES):
            self._note(name, getattr(sample, name))
        if sample.sm_clock_mhz is not None and self.sm_clock_max_mhz:
            self._note("sm_clock_ratio", sample.sm_clock_mhz / self.sm_clock_max_mhz)
        if sample.throttle is not None:
            self.throttle_samples += 1
            self.throttled.update(sample.throttle)

    def _note(self, name: str, value: float | None) -> None:
        self.series.setdefault(name, Series()).add(value)


def gpu_usage(tallies: Sequence[GpuAccumulator]) -> tuple[GpuSummary, dict[str, str]]:
    """The figures over all GPUs, and why those that are null are."""
    joined: dict[str, Series] = {}
    for tally in tallies:
        for name, series in tally.series.items():
            joined.setdefault(name, Series()).join(series)
    empty = Series()

    def of(name: str) -> Series:
        return joined.get(name, empty)

    energies = [tally.energy_j for tally in tallies]
    xids = [tally.xids for tally in tallies if tally.xids is not None]
    asked = sum(tally.throttle_samples for tally in tallies)
    held: Counter[str] = sum((tally.throttled for tally in tallies), Counter())
    memory = of("memory_used_bytes").most
    usage = GpuSummary(
        gpus=len(tallies),
        gpus_lost=sum(tally.lost for tally in tallies),
        samples=sum(tally.samples for tally in tallies),
        sampled_s=sum(tally.sampled_s for tally in tallies) / len(tallies),
        utilization=of("utilization").mean,
        memory_used_peak_bytes=None if memory is None else int(memory),
        power_mean_w=of("power_w").mean,
        power_max_w=of("power_w").most,
        energy_j=None if None in energies else sum(energy for energy in energies if energy is not None),
        sm_clock_ratio_min=of("sm_clock_ratio").least,
        sm_clock_ratio_mean=of("sm_clock_ratio").mean,
        throttled={name: count / asked for name, count in sorted(held.items())} if asked else None,
        temperature_max_c=of("temperature_c").most,
        ecc_corrected=_grown(tallies, "ecc_corrected"),
        ecc_uncorrected=_grown(tallies, "ecc_uncorrected"),
        xids=dict(sum(xids, Counter())) if xids else None,
        **{name: of(name).mean for name in _RATES},
    )
    reasons = {
        f"gpu.{name}": _why(name, tallies) for name in GpuSummary.model_fields if getattr(usage, name) is None
    }
    return usage, reasons


def _why(name: str, tallies: Sequence[GpuAccumulator]) -> str:
    of_attempt = name in ("memory_used_peak_bytes", "temperature_max_c", "ecc_corrected", "ecc_uncorrected")
    if not of_attempt and name != "xids" and not any(tally.samples for tally in tallies):
        return "no sample fell into measured steps"
    if name == "energy_j":
        if not all(tally.sampled_s for tally in tallies):
            return "a GPU without two samples in one segment of measured steps"
        return "a GPU without an energy counter"
    return _NO_TELLING


def _grown(tallies: Sequence[GpuAccumulator], name: str) -> int | None:
    found = [tally.ecc[name] for tally in tallies if name in tally.ecc]
    return sum(last - first for first, last in found) if found else None


@dataclass
class ProcessAccumulator:
    """One rank's process so far. `errors` are its reader's."""

    errors: dict[str, str] = field(default_factory=dict)
    samples: int = 0
    cpu: Series = field(default_factory=Series)
    rss: Series = field(default_factory=Series)
    threads: Series = field(default_factory=Series)
    memory: Series = field(default_factory=Series)

    def add(self, sample: HostSample, segment: int | None) -> None:
        """Take the next sample, of that segment of measured steps, if any."""
        if segment is not None:
            self.samples += 1
            self.cpu.add(sample.cpu_percent)
        self.rss.add(sample.rss_bytes)
        self.threads.add(sample.threads)
        if sample.host_memory_used_bytes is not None and sample.host_memory_total_bytes:
            self.memory.add(sample.host_memory_used_bytes / sample.host_memory_total_bytes)


def process_usage(tallies: Sequence[ProcessAccumulator]) -> tuple[ProcessSummary, dict[str, str]]:
    """The figures over all ranks, and why those that are null are."""
    all_: dict[str, Series] = {name: Series() for name in ("cpu", "rss", "threads", "memory")}
    for tally in tallies:
        for name, series in all_.items():
            series.join(getattr(tally, name))
    rss, threads = all_["rss"].most, all_["threads"].most
    samples = sum(tally.samples for tally in tallies)
    usage = ProcessSummary(
        ranks=len(tallies),
        samples=samples,
        cpu_percent=all_["cpu"].mean,
        rss_peak_bytes=None if rss is None else int(rss),
        threads_max=None if threads is None else int(threads),
        host_memory_used_peak=all_["memory"].most,
    )
    why = dict.fromkeys(ProcessSummary.model_fields, "the system did not tell")
    for name, read in _READ_AS.items():
        errors = [tally.errors[read] for tally in tallies if read in tally.errors]
        if errors:
            why[name] = errors[0]
    if not samples:
        why["cpu_percent"] = "no sample fell into measured steps"
    return usage, {f"processes.{name}": why[name] for name in why if getattr(usage, name) is None}


def _either(pick: Callable[[float, float], float], one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return pick(one, other)
