"""Which strategy a run uses, and why."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Protocol, cast

from torch import nn

from disttrain.config import ParallelConfig
from disttrain.errors import ConfigError
from disttrain.world import World


class Strategy(Protocol):
    """What a module of this package offers; see the package's docstring."""

    COMM_METHOD: str | None
    SETTLES: bool

    def wrap(self, model: nn.Module, config: ParallelConfig, world: World) -> nn.Module: ...
    def without_sync(self, model: nn.Module) -> AbstractContextManager[None]: ...
    def bare(self, model: nn.Module) -> nn.Module: ...


def choose(wanted: str, world_size: int) -> tuple[str, str]:
    """(strategy, reason). Raises `ConfigError` for a strategy that cannot serve this world size."""
    if wanted == "single" and world_size > 1:
        raise ConfigError(f"parallel.strategy=single needs 1 rank, not {world_size}; use ddp or auto")
    if wanted != "auto":
        return wanted, "asked for"
    if world_size == 1:
        return "single", "one rank has nobody to share with"
    return "ddp", f"the model fits each of the {world_size} ranks, so only gradients need to travel"


def load(name: str) -> Strategy:
    return cast(Strategy, importlib.import_module(f"disttrain.parallel.{name}"))
