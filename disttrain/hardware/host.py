"""Samples of the ranks' processes and of the host: the only module that imports psutil."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import psutil

from disttrain.errors import in_one_line
from disttrain.hardware.sampled_fields import PROCESS_FIELDS

_FIELDS = [field for field in PROCESS_FIELDS if field.readers]


class ProcessReader:
    """The process of one rank. A reading that fails is null and leaves the others alone; nothing is
    raised."""

    def __init__(self, pid: int) -> None:
        self.errors: dict[str, str] = {}
        """The first error of each field."""
        self._process: psutil.Process | None = None
        self._primed = False
        try:
            self._process = psutil.Process(pid)
        except Exception as error:
            self.errors = dict.fromkeys((field.name for field in _FIELDS), in_one_line(error))

    def read(self) -> dict[str, Any]:
        """`cpu_percent` since the previous call (null in the first), `rss_bytes` and `threads`."""
        found: dict[str, Any] = dict.fromkeys(field.name for field in _FIELDS)
        if self._process is None:
            return found
        with self._process.oneshot():
            for field in _FIELDS:
                try:
                    found[field.name] = field.readers[0](psutil, self._process)
                except Exception as error:
                    self.errors.setdefault(field.name, in_one_line(error))
        was_primed, self._primed = self._primed, found["cpu_percent"] is not None
        return found if was_primed else {**found, "cpu_percent": None}


class HostProcessors:
    """Processors of the machine, over the processes of all users."""

    def __init__(self, processors: Collection[int]) -> None:
        """`processors`: those to count; other jobs of a shared node have the rest."""
        self._counted = processors
        self._last: tuple[float, float] | None = None

    def percent(self) -> float | None:
        """Processor time since the previous call, in percent of one processor; None in the first call, and
        where the system does not report it."""
        try:
            times = psutil.cpu_times(percpu=True)
        except Exception:
            return None
        if max(self._counted) < len(times):  # else some are offline, or hidden from a container: all count
            times = [times[processor] for processor in self._counted]
        kinds = ("user", "nice", "system", "irq", "softirq")  # time in guests is part of user and nice
        now = time.monotonic()
        busy_s = sum(getattr(each, kind, 0.0) for each in times for kind in kinds)
        last, self._last = self._last, (now, busy_s)
        if last is None or now <= last[0]:
            return None
        return round(100 * (busy_s - last[1]) / (now - last[0]), 1)


def host_memory() -> dict[str, Any]:
    """Memory of the host in bytes: in total, and in use, which is all that is not available to new
    processes."""
    try:
        memory = psutil.virtual_memory()
    except Exception:
        return {"host_memory_used_bytes": None, "host_memory_total_bytes": None}
    return {
        "host_memory_used_bytes": memory.total - memory.available,
        "host_memory_total_bytes": memory.total,
    }
