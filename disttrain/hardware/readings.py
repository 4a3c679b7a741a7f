"""The readings of one device by its rows of the table of fields.

Each reading stands alone: where the device, the driver or the permissions refuse one, its values are null and
the first reason is kept. The same holds for an exception of the binding, for instance on a name that is not
UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from disttrain.errors import in_one_line
from disttrain.hardware.fields import Field
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


class Readings:
    """The readings of one device. A reader that never will work gives way to the next of its field."""

    def __init__(self, fields: Sequence[Field], api: Any, device: Any, name: str = "") -> None:
        """`api` and `device` are what the readers of `fields` take."""
        # copied by another thread: its dicts are replaced, not changed
        self.samples = DeviceSamples(name)
        self._target = (api, device)
        self._permanent = [getattr(api, name) for name in _PERMANENT if hasattr(api, name)]
        self._lost: type[Exception] | tuple[()] = getattr(api, "NVMLError_GpuIsLost", ())
        self._fields = [row for row in fields if not row.constant]
        self._readers: dict[str, list[Any]] = {}
        for row in fields:
            readers = [*row.readers, row.slow_reader] if row.slow_reader else row.readers
            self._readers[row.name] = [each() if isinstance(each, type) else each for each in readers]
        self._samples = 0
        self._before: dict[str, tuple[float, float]] = {}  # time and reading of counters
        self.samples.constants = {row.name: self._value(row, 0.0) for row in fields if row.constant}

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
        return self._readers[row.name][:1] == [row.slow_reader]

    def _value(self, row: Field, now: float) -> Any:
        """The value by the first reader that works."""
        readers = self._readers[row.name]
        while readers and self.samples.lost is None:
            if self._is_slow(row) and self._samples % SLOW_EVERY:
                return None
            try:
                return self._converted(row, readers[0](*self._target), now)
            except self._lost as error:
                self.samples.lost = str(error)
                return None
            except Exception as error:  # of the binding, too: no reading may end the others
                reason = {row.name: in_one_line(error)}
                code = getattr(error, "value", None)  # of an NVMLError
                if code not in self._permanent and not isinstance(error, AttributeError):
                    self.samples.errors = reason | self.samples.errors
                    return None
            del readers[0]
            if not readers:
                self.samples.unsupported = self.samples.unsupported | reason
        return None

    def _converted(self, row: Field, value: Any, now: float) -> Any:
        """The value in the sample for a reading."""
        if row.since_start:
            return round(value - self._before.setdefault(row.name, (now, value))[1], 3)
        if not row.per_second or self._is_slow(row):
            return value
        then, before = self._before.get(row.name, (now, value))
        self._before[row.name] = (now, value)
        grows = now > then and value >= before
        return round((value - before) / (now - then), 1) if grows else None
