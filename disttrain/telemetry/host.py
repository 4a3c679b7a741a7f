"""What the operating system says about the ranks' processes: the only module that calls psutil."""

from __future__ import annotations

from typing import Any

import psutil

_FIELDS = ("cpu_percent", "rss_bytes", "threads")


class ProcessReader:
    """The process of one rank. Readings that fail are null; nothing is raised."""

    def __init__(self, pid: int) -> None:
        self._process: psutil.Process | None = None
        self._primed = False
        try:
            self._process = psutil.Process(pid)
        except psutil.Error:
            return

    def read(self) -> dict[str, Any]:
        """`cpu_percent` since the last call (null in the first), `rss_bytes` and `threads`."""
        if self._process is None:
            return dict.fromkeys(_FIELDS)
        try:
            with self._process.oneshot():
                percent = self._process.cpu_percent()
                found = {
                    "cpu_percent": percent if self._primed else None,
                    "rss_bytes": self._process.memory_info().rss,
                    "threads": self._process.num_threads(),
                }
        except (psutil.Error, OSError):
            self._primed = False
            return dict.fromkeys(_FIELDS)
        self._primed = True
        return found


def host_memory() -> dict[str, Any]:
    """Memory of the whole machine; used is what is not available to new processes."""
    try:
        memory = psutil.virtual_memory()
    except (psutil.Error, OSError):
        return {"host_memory_used_bytes": None, "host_memory_total_bytes": None}
    return {
        "host_memory_used_bytes": memory.total - memory.available,
        "host_memory_total_bytes": memory.total,
    }
