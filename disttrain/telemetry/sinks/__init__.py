"""Sinks: rank 0 also writes live scalars to them. One module per sink, with a function `build`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from disttrain.errors import is_disk_full
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.runtime.plug_ins import load_plug_in
from disttrain.telemetry.background_writer import BackgroundWriter


class Sink(Protocol):
    """The interface of a sink. One thread beside the training loop calls the methods."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values by name at optimizer step `step`."""

    def close(self) -> None:
        """Finish after the run; `metrics.json` is final."""


def open_sink(name: str, attempt: Attempt) -> Sink:
    """The sink of module `name` of this package, or of `package.module:name`. Raises `ConfigError`."""
    sink: Sink = load_plug_in("telemetry.sinks", __name__, name)(attempt)
    return sink


class Sinks:
    """The sinks of a run, called by `writer`. A full disk, or a package that is missing, ends a sink."""

    def __init__(self, names: Sequence[str], attempt: Attempt, writer: BackgroundWriter) -> None:
        self._open: list[Sink] = []
        for name in names:
            try:
                self._open.append(open_sink(name, attempt))
            except ModuleNotFoundError as error:  # the environment of a script may lack it
                log.error("a sink is left out", sink=name, error=str(error))
        self._writer = writer

    def send(self, step: int, values: Mapping[str, float | None]) -> None:
        """Send the values that are not null to every sink."""
        numbers = {name: value for name, value in values.items() if value is not None}
        self._submit(lambda sink: sink.scalars(step, numbers))

    def close(self) -> None:
        """Close the sinks, after all values have been sent."""
        self._submit(lambda sink: sink.close())

    def _submit(self, act: Callable[[Sink], None]) -> None:
        if self._open:
            self._writer.submit(act, lambda: self._call(act))

    def _call(self, act: Callable[[Sink], None]) -> None:
        for sink in self._open[:]:
            try:
                act(sink)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                log.error("the disk is full: a sink ends", sink=type(sink).__module__)
                self._open.remove(sink)
