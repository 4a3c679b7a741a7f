"""A sink that writes to a store, such as a server of MLflow or W&B, from a thread, because a store is slow.

A failing store is logged and never ends the run.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from disttrain.config.dotted_keys import flat_values
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.runtime import log

WRITE_EVERY_S = 10.0
Scalars = tuple[int, float, Mapping[str, float]]
"""Step, seconds since the epoch, and values by name."""


class StoreSink(ABC):
    def __init__(self, attempt: Attempt) -> None:
        self.run = RunDir(attempt.path.parent.parent)
        self.record: dict[str, Any] = read_json_or_none(self.run.run_json) or {}
        self._waiting: list[Scalars] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name=type(self).__name__, daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._waiting.append((step, time.time(), values))

    def close(self) -> None:
        """Write the remaining scalars and the summary of `metrics.json`; waits at most 60 s."""
        self._closing.set()
        self._thread.join(timeout=60)

    def _write_on(self) -> None:
        try:
            self.open()
            while not self._closing.wait(WRITE_EVERY_S):
                self.write(self._take())
            metrics: dict[str, Any] = read_json_or_none(self.run.metrics) or {}
            figures = {
                name: float(value)
                for name, value in flat_values(metrics).items()
                if isinstance(value, int | float)
                and not isinstance(value, bool)
                and not name.endswith("schema_version")
            }
            self.write(self._take())
            self.finish(metrics, figures)
        except Exception as error:
            name = type(self).__name__
            log.error(f"{name} record is incomplete", kind=type(error).__name__, error=str(error)[:300])

    def _take(self) -> list[Scalars]:
        taken = self._waiting[:]
        del self._waiting[: len(taken)]
        return taken

    @abstractmethod
    def open(self) -> None:
        """Continue the run of an earlier attempt in the store, or create one."""

    @abstractmethod
    def write(self, scalars: Sequence[Scalars]) -> None:
        """Write values in the order of their steps."""

    @abstractmethod
    def finish(self, metrics: Mapping[str, Any], figures: Mapping[str, float]) -> None:
        """Write the end: the content of `metrics.json`, and its numbers by name."""
