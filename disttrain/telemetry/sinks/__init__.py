"""Where rank 0 sends live scalars besides the JSON files: one module a sink, with a class `Sink`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol

from disttrain.errors import ConfigError, nearest
from disttrain.records.run_directory import Attempt


class SinkLike(Protocol):
    """A sink. Its constructor takes the `Attempt` it is for."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take the named values as of optimizer step `step`."""

    def close(self) -> None:
        """The run is over, and `metrics.json` final."""


def open_sink(name: str, attempt: Attempt) -> SinkLike:
    """The sink of that name: a module here, or `package.module:Class`. Raises `ConfigError` without one."""
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
