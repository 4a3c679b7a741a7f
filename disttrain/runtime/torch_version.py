"""The oldest torch that the trainer and the telemetry support. Imports without torch."""

from __future__ import annotations

import re
import sys
from importlib import metadata

from disttrain.errors import ConfigError

LOWEST = "2.11"
"""As the extra `train` in pyproject.toml."""


def require_torch() -> None:
    """Raise `ConfigError` unless this Python has torch in a version that is not too old."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise ConfigError(f"{sys.executable} has no torch; install disttrain[train]") from None
    if _numbers(version) < _numbers(LOWEST):
        raise ConfigError(
            f"{sys.executable} has torch {version}; the trainer and the telemetry need {LOWEST} or newer"
        )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]
