"""The readings of one device by its rows of the table of fields, and the session of NVML.

Each reading stands alone: where the device, the driver or the permissions refuse one, its values are null and
the first reason is kept. The same holds for an exception of the binding, for instance on a name that is not
UTF-8.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from disttrain.errors import in_one_line
from disttrain.hardware.fields import Field, UnusableReading
from disttrain.hardware.statistics import DeviceSamples

SLOW_EVERY = 10
"""Samples between two uses of a reader that takes 20 ms."""
_PERMANENT = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
)
"""Errors of NVML that every later call would give again."""


class Unavailable(RuntimeError):
    """NVML, or a GPU in it, cannot be used; the message is the reason in one line."""


class Readings:
    """The readings of one device. A reader that never will work gives way to the next of its field."""

    def __init__(self, fields: Sequence[Field], api: Any, device: Any, name: str = "") -> None:
        """`api` and `device` are what the readers of `fields` take."""
        # copied by another thread: its dicts are replaced, not changed
        self.samples = DeviceSamples(name)
        self._target = (api, device)
        self._permanent = [getattr(api, name, None) for name in _PERMANENT]
        self._lost: type[Exception] | tuple[()] = getattr(api, "NVMLError_GpuIsLost", ())
        self._fields = [row for row in fields if row.readers and not row.constant]
        self._readers = {row.name: list(row.readers) for row in fields}
        for row in fields:
            if row.slow_reader is not None:
                self._readers[row.name].append(row.slow_reader)
        self._samples = 0
        self._counters: dict[str, tuple[float, float]] = {}
        self._first: dict[str, float] = {}
        self.samples.constants = {row.name: self._value(row) for row in fields if row.constant}

    def read(self, now: float) -> dict[str, Any]:
        """The fields of a sample at the monotonic time `now` (seconds). Rates are null in the first sample
        and where a counter was reset."""
        values = {row.name: self._value(row, now) for row in self._fields}
        self._samples += 1
        return values

    @property
    def slow_method(self) -> str | None:
        """Source of the fields that have a slow reader; None before a sample and where nothing gives them."""
        rows = [row for row in self._fields if row.slow_reader and self._readers[row.name]]
        if not rows or not self._samples:
            return None
        return f"20 ms in every {SLOW_EVERY}th sample" if any(map(self._is_slow, rows)) else "counter"

    def _is_slow(self, row: Field) -> bool:
        """Whether only the slow reader of the field is left."""
        return row.slow_reader is not None and self._readers[row.name][:1] == [row.slow_reader]

    def _value(self, row: Field, now: float = 0.0) -> Any:
        """The value by the first reader that works."""
        readers = self._readers[row.name]
        while readers and self.samples.lost is None:
            if self._is_slow(row) and self._samples % SLOW_EVERY:
                return None
            if isinstance(readers[0], type):
                readers[0] = readers[0]()
            try:
                return self._converted(row, readers[0](*self._target), now)
            except self._lost as error:
                self.samples.lost = str(error)
                return None
            except Exception as error:  # of the binding, too: no reading may end the others
                unusable = isinstance(error, AttributeError | UnusableReading)
                code = getattr(error, "value", None)  # of an NVMLError
                reason = str(error) if unusable or code is not None else in_one_line(error)
                if not unusable and (code is None or code not in self._permanent):
                    self.samples.errors = {row.name: reason, **self.samples.errors}
                    return None
            del readers[0]
            if not readers:
                self.samples.unsupported = {**self.samples.unsupported, row.name: reason}
        return None

    def _converted(self, row: Field, value: Any, now: float) -> Any:
        """The value in the sample for a reading."""
        if row.per_second and not self._is_slow(row):
            then, before = self._counters.get(row.name, (now, value))
            self._counters[row.name] = (now, value)
            grows = now > then and value >= before
            return round((value - before) / (now - then), 1) if grows else None
        if row.since_start:
            return round(value - self._first.setdefault(row.name, value), 3)
        return value


@dataclass(frozen=True)
class GpuId:
    """A GPU in NVML's spelling. Never its index: torch and NVML number GPUs differently once
    CUDA_VISIBLE_DEVICES or a container hides some."""

    uuid: str | None
    pci_bus_id: str | None


class Nvml:
    """An open NVML session, the only user of pynvml. Raises `Unavailable` where NVML cannot be opened."""

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
