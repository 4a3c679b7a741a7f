"""Samples of GPUs through NVML: the only module that imports pynvml.

GPUs are found by UUID or PCI bus id, never by index: torch and NVML number GPUs differently once
CUDA_VISIBLE_DEVICES or a container hides some. Each reading stands alone: where the device, the driver or the
permissions refuse one, its values are null and the first reason is kept. The same holds for an exception of
the binding, for instance on a name that is not UTF-8.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from disttrain.errors import in_one_line
from disttrain.hardware.sampled_fields import GPU_FIELDS, Reader, UnusableReading
from disttrain.records.hardware import GpuDevice

SLOW_EVERY = 10
"""Samples between two uses of the readers that take 20 ms."""
_CONSTANTS: dict[str, Reader] = {
    "name": lambda api, h: api.nvmlDeviceGetName(h),
    "memory_total_bytes": lambda api, h: api.nvmlDeviceGetMemoryInfo(h).total,
    "sm_clock_max_mhz": lambda api, h: api.nvmlDeviceGetMaxClockInfo(h, api.NVML_CLOCK_SM),
    "power_limit_w": lambda api, h: api.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3,
}
"""Fields of `GpuDevice`, read once."""
_PERMANENT = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
)
"""Errors that every later call would give again."""


class Unavailable(RuntimeError):
    """NVML, or a GPU in it, cannot be used; the message is the reason in one line."""


@dataclass(frozen=True)
class GpuId:
    """A GPU as torch identifies it, in NVML's spelling."""

    uuid: str | None
    pci_bus_id: str | None


class Nvml:
    """An open NVML session. Raises `Unavailable` where NVML cannot be opened."""

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
        """The handle of the GPU. Raises `Unavailable` where NVML does not list the GPU."""
        problems = []
        for get_handle, name in (
            (self.api.nvmlDeviceGetHandleByUUID, gpu.uuid),
            (self.api.nvmlDeviceGetHandleByPciBusId, gpu.pci_bus_id),
        ):
            if name is None:
                continue
            try:
                return get_handle(name)
            except self.api.NVMLError as error:
                problems.append(f"{name}: {error}")
        raise Unavailable(f"NVML finds no GPU {', '.join(problems) or 'without an id'}")

    def close(self) -> None:
        with contextlib.suppress(self.api.NVMLError):
            self.api.nvmlShutdown()


class GpuReader:
    """The readings of one GPU. `device` describes the GPU and collects the reasons of null readings."""

    def __init__(self, nvml: Nvml, gpu: GpuId, ranks: list[int]) -> None:
        api = self._api = nvml.api
        self._handle = nvml.find(gpu)
        self._permanent = frozenset(getattr(api, name) for name in _PERMANENT)
        self._readers = {field.name: self._bound(*field.readers) for field in GPU_FIELDS}
        self._slow_readers = {
            field.name: self._bound(*field.slow_readers) for field in GPU_FIELDS if field.slow_readers
        }
        self._counters: tuple[float, dict[str, int]] = (0.0, {})
        self._first: dict[str, float] = {}
        self._samples = 0
        self.device = GpuDevice(ranks=ranks, uuid=gpu.uuid, pci_bus_id=gpu.pci_bus_id)
        for name, reader in _CONSTANTS.items():
            setattr(self.device, name, self._try(name, self._bound(reader)))
        self._xid_events = self._try("xids", self._bound(_watch_xids))
        if self._xid_events is not None:
            self._readers["xids"] = [self._new_xids]

    @property
    def lost(self) -> bool:
        """Whether the GPU fell off the bus; a lost GPU is not read again."""
        return self.device.lost is not None

    def read(self, now: float) -> dict[str, Any]:
        """The fields of a `GpuSample` that NVML gives, at the monotonic time `now` (seconds)."""
        found = {name: self._try(name, readers) for name, readers in self._readers.items()}
        found |= self._rates(now, found)
        found |= self._slow_readings()
        for field in GPU_FIELDS:
            if field.since_start and (value := found[field.name]) is not None:
                found[field.name] = round(value - self._first.setdefault(field.name, value), 3)
        self._samples += 1
        return found

    def _rates(self, now: float, found: dict[str, Any]) -> dict[str, float | None]:
        """Growth of the counters per second since the previous sample; null in the first sample and where a
        counter was reset."""
        then, before = self._counters
        values = {field.name: found[field.name] for field in GPU_FIELDS if field.per_second}
        self._counters = (now, {name: value for name, value in values.items() if value is not None})
        rates: dict[str, float | None] = dict.fromkeys(values)
        for name, value in values.items():
            old = before.get(name)
            if value is not None and old is not None and value >= old and now > then:
                rates[name] = round((value - old) / (now - then))
        return rates

    def _slow_readings(self) -> dict[str, Any]:
        """In every `SLOW_EVERY`th sample: the readings of fields without a counter, which are the PCIe
        rates."""
        without = [name for name in self._slow_readers if not self._readers[name]]
        self.device.pcie_method = None if without else "counter"
        if any(self._slow_readers[name] for name in without):
            self.device.pcie_method = f"20 ms in every {SLOW_EVERY}th sample"
            for name in without:
                self.device.unsupported.pop(name, None)
        if self._samples % SLOW_EVERY:
            return {}
        return {name: self._try(name, self._slow_readers[name]) for name in without}

    def _new_xids(self) -> list[int]:
        """Xid errors since the previous call."""
        found = []
        while True:
            try:
                found.append(int(self._api.nvmlEventSetWait_v2(self._xid_events, 0).eventData))
            except self._api.NVMLError_Timeout:
                return found

    def _bound(self, *readers: Reader) -> list[Callable[[], Any]]:
        return [partial(reader, self._api, self._handle) for reader in readers]

    def _try(self, field: str, readers: list[Callable[[], Any]]) -> Any:
        """The value of the first reader that works. A reader that never will is removed from the list."""
        api = self._api
        while readers and not self.lost:
            try:
                return readers[0]()
            except api.NVMLError_GpuIsLost as error:
                self.device.lost = str(error)
                return None
            except api.NVMLError as error:
                reason = str(error)
                if error.value not in self._permanent:
                    self.device.errors.setdefault(field, reason)
                    return None
            except (AttributeError, UnusableReading) as error:
                reason = str(error)
            except Exception as error:  # of the binding: no reading may end the others
                self.device.errors.setdefault(field, in_one_line(error))
                return None
            del readers[0]
            if not readers:
                self.device.unsupported[field] = reason
        return None


def _watch_xids(api: Any, handle: Any) -> Any:
    events = api.nvmlEventSetCreate()
    api.nvmlDeviceRegisterEvents(handle, api.nvmlEventTypeXidCriticalError, events)
    return events
