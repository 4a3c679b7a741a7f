"""NVML: what the driver says about the GPUs of this node's ranks. The only module that calls it.

GPUs are found by UUID or PCI bus id, never by index: torch and NVML count them differently as soon as
CUDA_VISIBLE_DEVICES or a container hides some. Each reading stands alone: one that the device, the driver or
the permissions refuse is null from then on, with the reason kept once, and the rest go on. So they do when a
binding trips over what the driver says (a name that is no UTF-8): that costs one value, and is kept, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from disttrain.errors import in_one_line
from disttrain.records.hardware import GpuDevice

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
"""Bits of NVML's clocks event reasons, by our names. `hw_slowdown` stands beside what brought it about."""
PCIE_EVERY = 10
"""Where PCIe has no counter the driver measures for 20 ms while we wait, so only every so many samples do."""
_ALL_LINKS = 0xFFFFFFFF  # as NVML's scope: the sum over the links of a GPU

Way = Callable[[Any], Any]
"""A reading: from the handle to the value. NVMLError is a refusal, AttributeError a `pynvml` that is too old,
all else an accident."""


class Unavailable(RuntimeError):
    """There is no NVML to ask; the message is why, in one line."""


class Unsupported(RuntimeError):
    """The device answers, but not with something that can be used."""


@dataclass(frozen=True)
class GpuId:
    """A GPU as torch knows it, in NVML's spelling."""

    uuid: str | None
    pci_bus_id: str | None


def identify(device: torch.device) -> GpuId | None:
    """Which GPU a torch device is; None for a CPU."""
    if device.type != "cuda":
        return None
    known = torch.cuda.get_device_properties(device)
    uuid = str(getattr(known, "uuid", "")) or None
    if uuid and not uuid.startswith(("GPU-", "MIG-")):
        uuid = f"GPU-{uuid}"
    numbers = [getattr(known, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    there = [number for number in numbers if number is not None]
    return GpuId(uuid, "{:08x}:{:02x}:{:02x}.0".format(*there) if len(there) == 3 else None)


class Nvml:
    """NVML, opened. Raises `Unavailable` where it cannot be."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise Unavailable(f"no module pynvml (package nvidia-ml-py): {error}") from None
        try:
            pynvml.nvmlInit()
        except Exception as error:
            raise Unavailable(f"NVML: {error}") from None
        self.api: Any = pynvml
        self.driver: str | None = None
        with contextlib.suppress(pynvml.NVMLError, ValueError):
            self.driver = pynvml.nvmlSystemGetDriverVersion()

    def find(self, gpu: GpuId) -> Any:
        """The handle of the GPU. Raises `Unavailable` when NVML does not know it."""
        problems = []
        for look, name in (
            (self.api.nvmlDeviceGetHandleByUUID, gpu.uuid),
            (self.api.nvmlDeviceGetHandleByPciBusId, gpu.pci_bus_id),
        ):
            if name is None:
                continue
            try:
                return look(name)
            except self.api.NVMLError as error:
                problems.append(f"{name}: {error}")
        raise Unavailable(f"NVML finds no GPU {', '.join(problems) or 'without an id'}")

    def close(self) -> None:
        with contextlib.suppress(self.api.NVMLError):
            self.api.nvmlShutdown()


class GpuReader:
    """All readings of one GPU. `device` says what it is, and grows the reasons of what it does not tell."""

    def __init__(self, nvml: Nvml, gpu: GpuId, ranks: list[int]) -> None:
        api = self._api = nvml.api
        self._handle = nvml.find(gpu)
        self._ways = _ways(api)
        self._pcie_ways = _pcie_ways(api)
        self._never = frozenset(getattr(api, name) for name in _NEVER)
        self._before: tuple[float, dict[str, int]] = (0.0, {})
        self._first_energy_j: float | None = None
        self._count = 0
        self.device = GpuDevice(ranks=ranks, uuid=gpu.uuid, pci_bus_id=gpu.pci_bus_id)
        constant: dict[str, Way] = {
            "name": api.nvmlDeviceGetName,
            "memory_total_bytes": lambda h: api.nvmlDeviceGetMemoryInfo(h).total,
            "sm_clock_max_mhz": lambda h: api.nvmlDeviceGetMaxClockInfo(h, api.NVML_CLOCK_SM),
            "power_limit_w": lambda h: api.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3,
        }
        for field, way in constant.items():
            setattr(self.device, field, self._try(field, [way]))
        self._xids = self._try("xids", [lambda h: _watch_xids(api, h)])
        self._xid_ways: list[Way] = [lambda _: self._new_xids()] if self._xids is not None else []

    @property
    def lost(self) -> bool:
        """Whether the GPU fell off the bus: it is not asked any more."""
        return self.device.lost is not None

    def read(self, now: float) -> dict[str, Any]:
        """The fields of a `GpuSample` that NVML gives, at the monotonic time `now`; null what it does not."""
        found = {field: self._try(field, ways) for field, ways in self._ways.items()}
        found |= self._per_second(now, {field: found[field] for field in _COUNTED})
        found |= self._pcie()
        energy_j = found["energy_j"]
        if energy_j is not None:
            if self._first_energy_j is None:
                self._first_energy_j = energy_j
            found["energy_j"] = round(energy_j - self._first_energy_j, 3)
        found["xids"] = self._try("xids", self._xid_ways)
        self._count += 1
        return found

    def _per_second(self, now: float, counters: dict[str, int | None]) -> dict[str, float | None]:
        """Rates since the sample before, from counters; null for the first, and where one began anew."""
        then, before = self._before
        self._before = (now, {name: value for name, value in counters.items() if value is not None})
        rates: dict[str, float | None] = {}
        for name, value in counters.items():
            old = before.get(name)
            usable = value is not None and old is not None and value >= old and now > then
            rates[name] = round((value - old) / (now - then)) if usable else None  # type: ignore[operator]
        return rates

    def _pcie(self) -> dict[str, Any]:
        """Where there is no counter: what the driver measures itself, now and then."""
        without = [field for field in self._pcie_ways if not self._ways[field]]
        self.device.pcie_method = None if without else "counter"
        if not without:
            return {}
        if any(self._pcie_ways[field] for field in without):
            self.device.pcie_method = f"20 ms in every {PCIE_EVERY}th sample"
            for field in without:
                self.device.unsupported.pop(field, None)
        if self._count % PCIE_EVERY:
            return {}
        return {field: self._try(field, self._pcie_ways[field]) for field in without}

    def _new_xids(self) -> list[int]:
        """Xid errors since the last call."""
        found = []
        while True:
            try:
                found.append(int(self._api.nvmlEventSetWait_v2(self._xids, 0).eventData))
            except self._api.NVMLError_Timeout:
                return found

    def _try(self, field: str, ways: list[Way]) -> Any:
        """The value by the first way that works. A way that never will is not tried again."""
        api = self._api
        while ways and not self.lost:
            try:
                return ways[0](self._handle)
            except api.NVMLError_GpuIsLost as error:
                self.device.lost = str(error)
                return None
            except api.NVMLError as error:
                reason = str(error)
                if error.value not in self._never:
                    self.device.errors.setdefault(field, reason)
                    return None  # perhaps the next time
            except (AttributeError, Unsupported) as error:
                reason = str(error)
            except Exception as error:  # the binding's own: no reading may end the others
                self.device.errors.setdefault(field, in_one_line(error))
                return None
            del ways[0]
            if not ways:
                self.device.unsupported[field] = reason
        return None


_COUNTED = (
    "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
)
_NEVER = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
)
"""Errors that do not pass."""


def _ways(api: Any) -> dict[str, list[Way]]:
    """How each field is read, the preferred way first; those in `_COUNTED` give the counter."""
    volatile = api.NVML_VOLATILE_ECC
    corrected, uncorrected = api.NVML_MEMORY_ERROR_TYPE_CORRECTED, api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    core = api.NVML_TEMPERATURE_GPU
    return {
        "utilization": [lambda h: api.nvmlDeviceGetUtilizationRates(h).gpu / 100],
        "memory_used_bytes": [lambda h: api.nvmlDeviceGetMemoryInfo(h).used],
        "power_w": [lambda h: api.nvmlDeviceGetPowerUsage(h) / 1e3],
        "energy_j": [lambda h: api.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3],
        "sm_clock_mhz": [lambda h: api.nvmlDeviceGetClockInfo(h, api.NVML_CLOCK_SM)],
        "throttle": [
            lambda h: throttle_names(api.nvmlDeviceGetCurrentClocksEventReasons(h)),
            lambda h: throttle_names(api.nvmlDeviceGetCurrentClocksThrottleReasons(h)),
        ],
        "temperature_c": [
            lambda h: api.nvmlDeviceGetTemperatureV(h, core),
            lambda h: api.nvmlDeviceGetTemperature(h, core),
        ],
        "ecc_corrected": [lambda h: api.nvmlDeviceGetTotalEccErrors(h, corrected, volatile)],
        "ecc_uncorrected": [lambda h: api.nvmlDeviceGetTotalEccErrors(h, uncorrected, volatile)],
        "nvlink_tx_bytes_per_s": [lambda h: 1024 * _counter(api, h, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX")],
        "nvlink_rx_bytes_per_s": [lambda h: 1024 * _counter(api, h, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")],
        "pcie_tx_bytes_per_s": [lambda h: _counter(api, h, "NVML_FI_DEV_PCIE_COUNT_TX_BYTES")],
        "pcie_rx_bytes_per_s": [lambda h: _counter(api, h, "NVML_FI_DEV_PCIE_COUNT_RX_BYTES")],
    }


def _pcie_ways(api: Any) -> dict[str, list[Way]]:
    return {
        "pcie_tx_bytes_per_s": [
            lambda h: 1000 * api.nvmlDeviceGetPcieThroughput(h, api.NVML_PCIE_UTIL_TX_BYTES)
        ],
        "pcie_rx_bytes_per_s": [
            lambda h: 1000 * api.nvmlDeviceGetPcieThroughput(h, api.NVML_PCIE_UTIL_RX_BYTES)
        ],
    }


def throttle_names(bits: int) -> list[str]:
    """Why clocks are not at their highest; a bit that has no name here is given as a number."""
    names = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    unknown = bits & ~sum(THROTTLE_REASONS)
    return [*names, f"0x{unknown:x}"] if unknown else names


def _counter(api: Any, handle: Any, field: str) -> int:
    """A counter among NVML's field values. One of 32 bits wraps several times a second: it is refused."""
    scope = _ALL_LINKS if "NVLINK" in field else 0
    value = api.nvmlDeviceGetFieldValues(handle, [(getattr(api, field), scope)])[0]
    if value.nvmlReturn != api.NVML_SUCCESS:
        raise api.NVMLError(value.nvmlReturn)
    if value.valueType != api.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
        raise Unsupported(f"the counter is of type {value.valueType}, not of 64 bits")
    return int(value.value.ullVal)


def _watch_xids(api: Any, handle: Any) -> Any:
    events = api.nvmlEventSetCreate()
    api.nvmlDeviceRegisterEvents(handle, api.nvmlEventTypeXidCriticalError, events)
    return events
