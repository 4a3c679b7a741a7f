"""The fields of hardware samples, each with its unit, its readers and the figures made of it.

`GPU_FIELDS` has the fields of `GpuSample`, read through NVML; `PROCESS_FIELDS` those of `HostSample`, read
through psutil. A new field is one entry here and one in each record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Reader = Callable[[Any, Any], Any]
"""From pynvml and a device handle to a value. An NVMLError is a refusal; an AttributeError means that pynvml
lacks the call. Readers of processes take psutil and a `psutil.Process`."""
Statistic = Literal["mean", "min", "max", "growth", "segment_growth", "counts", "shares"]
"""How samples become a figure: see `disttrain.hardware.aggregation`."""


class UnusableReading(RuntimeError):
    """The device answers in a form that has no use, for instance a counter that wraps within a second."""


@dataclass(frozen=True)
class Figure:
    """One field of `GpuSummary` or `ProcessSummary`."""

    name: str
    statistic: Statistic
    whole_attempt: bool = False
    """Whether samples outside the measured steps count, too."""
    relative_to: str | None = None
    """The sample is divided by this field of the sample or constant of the device."""


@dataclass(frozen=True)
class Field:
    """One field of a sample."""

    name: str
    unit: str
    readers: tuple[Reader, ...] = ()
    """In order of preference; a reader that is not supported gives way to the next."""
    figures: tuple[Figure, ...] = ()
    per_second: bool = False
    """The readers give a counter; the sample has the counter's growth per second since the previous
    sample."""
    since_start: bool = False
    """The sample has the reading less the first reading of the attempt."""
    slow_readers: tuple[Reader, ...] = ()
    """Readers that take 20 ms, used now and then where `readers` give nothing."""
    live: str | None = None
    """The field's name in `progress.json`, which has the mean over the node's GPUs or ranks."""


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


def _counter(field: str, scope: int, unit_bytes: int) -> Reader:
    """A reader of a 64-bit counter among NVML's field values. A 32-bit counter wraps several times a second
    and is refused."""

    def read(api: Any, handle: Any) -> int:
        value = api.nvmlDeviceGetFieldValues(handle, [(getattr(api, field), scope)])[0]
        if value.nvmlReturn != api.NVML_SUCCESS:
            raise api.NVMLError(value.nvmlReturn)
        if value.valueType != api.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
            raise UnusableReading(f"the counter is of type {value.valueType}, not of 64 bits")
        return unit_bytes * int(value.value.ullVal)

    return read


def _ecc(kind: str) -> Reader:
    kind = f"NVML_MEMORY_ERROR_TYPE_{kind}"
    return lambda api, h: api.nvmlDeviceGetTotalEccErrors(h, getattr(api, kind), api.NVML_VOLATILE_ECC)


def _rate(name: str, counter: Reader, *slow: Reader) -> Field:
    return Field(name, "bytes/s", (counter,), (Figure(name, "mean"),), per_second=True, slow_readers=slow)


# fmt: off
GPU_FIELDS = (
    Field("utilization", "share", (lambda api, h: api.nvmlDeviceGetUtilizationRates(h).gpu / 100,),
          (Figure("utilization", "mean"),), live="gpu_utilization"),
    Field("memory_used_bytes", "bytes", (lambda api, h: api.nvmlDeviceGetMemoryInfo(h).used,),
          (Figure("memory_used_peak_bytes", "max", whole_attempt=True),), live="gpu_memory_used_bytes"),
    Field("power_w", "W", (lambda api, h: api.nvmlDeviceGetPowerUsage(h) / 1e3,),
          (Figure("power_mean_w", "mean"), Figure("power_max_w", "max")), live="gpu_power_w"),
    Field("energy_j", "J", (lambda api, h: api.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3,),
          (Figure("energy_j", "segment_growth"),), since_start=True),
    Field("sm_clock_mhz", "MHz", (lambda api, h: api.nvmlDeviceGetClockInfo(h, api.NVML_CLOCK_SM),),
          (Figure("sm_clock_ratio_min", "min", relative_to="sm_clock_max_mhz"),
           Figure("sm_clock_ratio_mean", "mean", relative_to="sm_clock_max_mhz"))),
    Field("throttle", "names",
          (lambda api, h: throttle_names(api.nvmlDeviceGetCurrentClocksEventReasons(h)),
           lambda api, h: throttle_names(api.nvmlDeviceGetCurrentClocksThrottleReasons(h))),
          (Figure("throttled", "shares"),)),
    Field("temperature_c", "degrees Celsius",
          (lambda api, h: api.nvmlDeviceGetTemperatureV(h, api.NVML_TEMPERATURE_GPU),
           lambda api, h: api.nvmlDeviceGetTemperature(h, api.NVML_TEMPERATURE_GPU)),
          (Figure("temperature_max_c", "max", whole_attempt=True),)),
    Field("ecc_corrected", "errors", (_ecc("CORRECTED"),), (Figure("ecc_corrected", "growth", True),)),
    Field("ecc_uncorrected", "errors", (_ecc("UNCORRECTED"),), (Figure("ecc_uncorrected", "growth", True),)),
    Field("xids", "Xid numbers", (), (Figure("xids", "counts", True),)),  # `GpuReader` adds the reader
    _rate("nvlink_tx_bytes_per_s", _counter("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", _ALL_LINKS, 1024)),
    _rate("nvlink_rx_bytes_per_s", _counter("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", _ALL_LINKS, 1024)),
    _rate("pcie_tx_bytes_per_s", _counter("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0, 1),
          lambda api, h: 1000 * api.nvmlDeviceGetPcieThroughput(h, api.NVML_PCIE_UTIL_TX_BYTES)),
    _rate("pcie_rx_bytes_per_s", _counter("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0, 1),
          lambda api, h: 1000 * api.nvmlDeviceGetPcieThroughput(h, api.NVML_PCIE_UTIL_RX_BYTES)),
)

PROCESS_FIELDS = (
    Field("cpu_percent", "% of one processor", (lambda _, process: process.cpu_percent(),),
          (Figure("cpu_percent", "mean"),), live="cpu_percent"),
    Field("rss_bytes", "bytes", (lambda _, process: process.memory_info().rss,),
          (Figure("rss_peak_bytes", "max", whole_attempt=True),), live="rss_bytes"),
    Field("threads", "threads", (lambda _, process: process.num_threads(),),
          (Figure("threads_max", "max", whole_attempt=True),)),
    Field("host_memory_used_bytes", "bytes", (),  # `host_memory` reads the host once for all ranks
          (Figure("host_memory_used_peak", "max", True, relative_to="host_memory_total_bytes"),)),
    Field("host_memory_total_bytes", "bytes"),
    Field("host_cpu_percent", "% of one processor"),  # `HostProcessors` reads the host once for all ranks
)
# fmt: on
