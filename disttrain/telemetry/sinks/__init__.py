"""Sinks: rank 0 also writes live scalars to them. One module per sink, with a function `build`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from disttrain.records.run_directory import Attempt
from disttrain.runtime.plug_ins import load_plug_in


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
