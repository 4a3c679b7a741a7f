"""What the operating system says about the ranks' processes: the only module that calls psutil."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil

from disttrain.errors import in_one_line

_FIELDS = ("cpu_percent", "rss_bytes", "threads")


class ProcessReader:
    """The process of one rank. A reading that fails is null, and costs no other; nothing is raised."""

    def __init__(self, pid: int) -> None:
        self.errors: dict[str, str] = {}
        """The first error of each field that has been null."""
        self._process: psutil.Process | None = None
        self._primed = False
        try:
            self._process = psutil.Process(pid)
        except Exception as error:
            self.errors = dict.fromkeys(_FIELDS, in_one_line(error))

    def read(self) -> dict[str, Any]:
        """`cpu_percent` since the last call (null in the first), `rss_bytes` and `threads`."""
        if self._process is None:
            return dict.fromkeys(_FIELDS)
        process, was_primed = self._process, self._primed
        with process.oneshot():
            percent = self._try("cpu_percent", process.cpu_percent)
            self._primed = percent is not None
            return {
                "cpu_percent": percent if was_primed else None,
                "rss_bytes": self._try("rss_bytes", lambda: process.memory_info().rss),
                "threads": self._try("threads", process.num_threads),
            }

    def _try(self, field: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:
            self.errors.setdefault(field, in_one_line(error))
            return None


def host_memory() -> dict[str, Any]:
    """Memory of the whole machine; used is what is not available to new processes."""
    try:
        memory = psutil.virtual_memory()
    except Exception:
        return {"host_memory_used_bytes": None, "host_memory_total_bytes": None}
    return {
        "host_memory_used_bytes": memory.total - memory.available,
        "host_memory_total_bytes": memory.total,
    }
