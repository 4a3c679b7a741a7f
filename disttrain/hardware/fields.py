"""The table of hardware fields: a row has a name, a unit, readers, and the figures that samples become.

`gpu` rows are in `GpuSample`, read through NVML; `process` rows in `HostSample`, read through psutil for each
rank; `host` rows, too, read once for all ranks of the node; `link` rows make `LinkTraffic`. A new field is
one row here, or a row of a user in `telemetry.fields`; the docs, `docs/schemas` and
`disttrain.records.hardware` describe those of this table.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from disttrain.errors import ConfigError

Reader = Callable[[Any, Any], Any]
"""From pynvml and a device handle to a value: an `AttributeError` means that pynvml lacks the call. Readers
of processes take psutil and a `psutil.Process`, those of a host psutil and the numbers of the job's
processors, those of links None and a `Link`. A class among the readers is made once for each device, for
readers with a state."""
Statistic = Literal["mean", "min", "max", "growth", "segment_growth", "counts", "shares", "zeros"]
"""How samples become a figure: see `disttrain.hardware.statistics`."""


@dataclass(frozen=True)
class Field:
    """One field of a sample."""

    of: Literal["gpu", "process", "host", "link"]
    name: str
    unit: str
    readers: tuple[Callable[..., Any], ...] = ()
    """In order of preference; a reader that is not supported gives way to the next."""
    figures: Mapping[str, Statistic] = field(default_factory=dict)
    """Fields of `GpuSummary` or `ProcessSummary`."""
    whole_attempt: bool = False
    """Whether samples outside the measured steps count in the figures, too."""
    relative_to: str | None = None
    """For the figures, the sample is divided by this field of the sample or constant of the device."""
    per_second: bool = False
    """The readers give a counter; the sample has the counter's growth per second since the previous
    sample."""
    since_start: bool = False
    """The sample has the reading less the first reading of the attempt."""
    constant: bool = False
    """Read once, into `GpuDevice` or `LinkTraffic`."""
    slow_reader: Reader | None = None
    """Takes 20 ms: used now and then where `readers` give nothing. It gives the value itself."""
    live: str | None = None
    """The field's name in `progress.json`, which has the mean over the node's GPUs or ranks."""


def load_field(name: str) -> Field:
    """The row `package.module:ROW` of `telemetry.fields`. Raises `ConfigError`."""
    module, _, attribute = name.partition(":")
    try:
        row = getattr(importlib.import_module(module), attribute, None)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"telemetry.fields={name} cannot be imported: {error}") from None
    if not isinstance(row, Field):
        raise ConfigError(f"telemetry.fields={name} is no disttrain.hardware.fields.Field")
    return row


_ALL_LINKS = 0xFFFFFFFF  # NVML's scope for the sum over the NVLinks of a GPU
THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
"""Bits of NVML's clocks event reasons. The driver sets `hw_slowdown` in addition to its cause."""


def throttle_names(bits: int) -> list[str]:
    """Names of the bits in NVML's clocks event reasons; an unknown bit is given as a hexadecimal number."""
    names = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    unknown = bits & ~sum(THROTTLE_REASONS)
    return [*names, f"0x{unknown:x}"] if unknown else names


class NewXids:
    """Xid errors of a GPU since the previous call."""

    _events: Any = None

    def __call__(self, api: Any, handle: Any) -> list[int]:
        if self._events is None:
            events = api.nvmlEventSetCreate()
            api.nvmlDeviceRegisterEvents(handle, api.nvmlEventTypeXidCriticalError, events)
            self._events = events
        xids = []
        while True:
            try:
                xids.append(int(api.nvmlEventSetWait_v2(self._events, 0).eventData))
            except api.NVMLError_Timeout:
                return xids


def _counter(field: str, scope: int, unit_bytes: int) -> Reader:
    """A reader of a 64-bit counter among NVML's field values. A 32-bit counter wraps several times a second
    and counts as not supported."""

    def read(api: Any, handle: Any) -> int:
        value = api.nvmlDeviceGetFieldValues(handle, [(getattr(api, field), scope)])[0]
        if value.nvmlReturn != api.NVML_SUCCESS:
            raise api.NVMLError(value.nvmlReturn)
        if value.valueType != api.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
            raise api.NVMLError(api.NVML_ERROR_NOT_SUPPORTED)
        return unit_bytes * int(value.value.ullVal)

    return read


def _ecc(kind: str) -> Reader:
    kind = f"NVML_MEMORY_ERROR_TYPE_{kind}"
    return lambda api, h: api.nvmlDeviceGetTotalEccErrors(h, getattr(api, kind), api.NVML_VOLATILE_ECC)


def _rate(name: str, counter: Reader, slow: Reader | None = None) -> Field:
    return Field("gpu", name, "bytes/s", (counter,), {name: "mean"}, per_second=True, slow_reader=slow)


def _busy_s(psutil: Any, processors: frozenset[int]) -> float:
    """Processor time of all processes of all users; time in guests is part of user and nice."""
    times = psutil.cpu_times(percpu=True)
    if max(processors) < len(times):  # else some are offline, or hidden from a container: all count
        times = [times[processor] for processor in processors]
    kinds = ("user", "nice", "system", "irq", "softirq")
    return sum(getattr(each, kind, 0.0) for each in times for kind in kinds)


def _in_use(psutil: Any, _: Any) -> int:
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available)


# fmt: off
_gpu, _process, _host, _link = (partial(Field, kind) for kind in ("gpu", "process", "host", "link"))
FIELDS = (
    _gpu("name", "", (lambda api, h: api.nvmlDeviceGetName(h),), constant=True),
    _gpu("memory_total_bytes", "bytes", (lambda api, h: api.nvmlDeviceGetMemoryInfo(h).total,),
     constant=True),
    _gpu("sm_clock_max_mhz", "MHz", (lambda api, h: api.nvmlDeviceGetMaxClockInfo(h, api.NVML_CLOCK_SM),),
     constant=True),
    _gpu("power_limit_w", "W", (lambda api, h: api.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3,), constant=True),
    _gpu("utilization", "share", (lambda api, h: api.nvmlDeviceGetUtilizationRates(h).gpu / 100,),
     {"utilization": "mean", "idle": "zeros"}, live="gpu_utilization"),
    _gpu("memory_used_bytes", "bytes", (lambda api, h: api.nvmlDeviceGetMemoryInfo(h).used,),
     {"memory_used_peak_bytes": "max"}, True, live="gpu_memory_used_bytes"),
    _gpu("power_w", "W", (lambda api, h: api.nvmlDeviceGetPowerUsage(h) / 1e3,),
     {"power_mean_w": "mean", "power_max_w": "max"}, live="gpu_power_w"),
    _gpu("energy_j", "J", (lambda api, h: api.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3,),
     {"energy_j": "segment_growth"}, since_start=True),
    _gpu("sm_clock_mhz", "MHz", (lambda api, h: api.nvmlDeviceGetClockInfo(h, api.NVML_CLOCK_SM),),
     {"sm_clock_ratio_min": "min", "sm_clock_ratio_mean": "mean"}, relative_to="sm_clock_max_mhz"),
    _gpu("throttle", "names",
     (lambda api, h: throttle_names(api.nvmlDeviceGetCurrentClocksEventReasons(h)),
      lambda api, h: throttle_names(api.nvmlDeviceGetCurrentClocksThrottleReasons(h))),
     {"throttled": "shares"}),
    _gpu("temperature_c", "degrees Celsius",
     (lambda api, h: api.nvmlDeviceGetTemperatureV(h, api.NVML_TEMPERATURE_GPU),
      lambda api, h: api.nvmlDeviceGetTemperature(h, api.NVML_TEMPERATURE_GPU)),
     {"temperature_max_c": "max"}, True),
    _gpu("ecc_corrected", "errors", (_ecc("CORRECTED"),), {"ecc_corrected": "growth"}, True),
    _gpu("ecc_uncorrected", "errors", (_ecc("UNCORRECTED"),), {"ecc_uncorrected": "growth"}, True),
    _gpu("xids", "Xid numbers", (NewXids,), {"xids": "counts"}, True),
    _rate("nvlink_tx_bytes_per_s", _counter("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", _ALL_LINKS, 1024)),
    _rate("nvlink_rx_bytes_per_s", _counter("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", _ALL_LINKS, 1024)),
    _rate("pcie_tx_bytes_per_s", _counter("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0, 1),
     lambda api, h: 1000 * api.nvmlDeviceGetPcieThroughput(h, api.NVML_PCIE_UTIL_TX_BYTES)),
    _rate("pcie_rx_bytes_per_s", _counter("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0, 1),
     lambda api, h: 1000 * api.nvmlDeviceGetPcieThroughput(h, api.NVML_PCIE_UTIL_RX_BYTES)),
    _process("cpu_percent", "% of one processor", (lambda _, process: 100 * sum(process.cpu_times()[:2]),),
     {"cpu_percent": "mean"}, per_second=True, live="cpu_percent"),
    _process("rss_bytes", "bytes", (lambda _, process: process.memory_info().rss,),
     {"rss_peak_bytes": "max"}, True, live="rss_bytes"),
    _process("threads", "threads", (lambda _, process: process.num_threads(),),
     {"threads_max": "max"}, True),
    _host("host_memory_used_bytes", "bytes", (_in_use,),
     {"host_memory_used_peak": "max"}, True, "host_memory_total_bytes"),
    _host("host_memory_total_bytes", "bytes", (lambda psutil, _: psutil.virtual_memory().total,)),
    _host("host_cpu_percent", "% of one processor", (lambda psutil, own: 100 * _busy_s(psutil, own),),
     per_second=True),
    _link("kind", "", (lambda _, link: link.kind,), constant=True),
    _link("expected", "", (lambda _, link: link.expected,), constant=True),
    _link("line_rate_bytes_per_s", "bytes/s", (lambda _, link: link.line_rate_bytes_per_s,), constant=True),
    _link("sent_bytes", "bytes", (lambda _, link: link.count(0),),
     {"sent_bytes": "segment_growth"}),
    _link("received_bytes", "bytes", (lambda _, link: link.count(1),),
     {"received_bytes": "segment_growth"}),
)
# fmt: on
