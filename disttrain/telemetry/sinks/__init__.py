"""Sinks: rank 0 also writes live scalars to them. One module per sink, with a class `Sink`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol

from disttrain.errors import ConfigError, nearest
from disttrain.records.run_directory import Attempt


class SinkLike(Protocol):
    """The interface of a sink. The constructor takes an `Attempt`. One thread beside the training loop calls
    the methods."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values by name at optimizer step `step`."""

    def close(self) -> None:
        """Finish after the run; `metrics.json` is final."""


def open_sink(name: str, attempt: Attempt) -> SinkLike:
    """Open the sink `name`: a module of this package, or `package.module:Class`. Raises `ConfigError`."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name if attribute else f"{__name__}.{name}")
        sink: SinkLike = getattr(module, attribute or "Sink")(attempt)
    except (ModuleNotFoundError, AttributeError) as error:
        if name == "mlflow" and not isinstance(error, AttributeError):
            raise ConfigError(
                "telemetry.sinks: mlflow is not installed: pip install 'disttrain[mlflow]'"
            ) from None
        hint = nearest(name, ["tensorboard", "mlflow"])
        raise ConfigError(
            f"telemetry.sinks: no sink {name!r} ({error}); allowed: tensorboard, mlflow or "
            f"package.module:Class{hint}"
        ) from None
    return sink
