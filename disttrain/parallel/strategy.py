"""From a strategy's name to its module."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Protocol, cast

from torch import nn

from disttrain.config.sections import ParallelConfig
from disttrain.runtime.process_group import World


class Strategy(Protocol):
    """What a module of this package offers; see the package's docstring."""

    COMM_METHOD: str | None
    PRIMES_BUCKETS: bool

    def wrap(self, model: nn.Module, config: ParallelConfig, world: World) -> nn.Module: ...
    def without_sync(self, model: nn.Module) -> AbstractContextManager[None]: ...
    def no_comm(self, model: nn.Module) -> AbstractContextManager[None]: ...
    def unwrap(self, model: nn.Module) -> nn.Module: ...


def load_strategy(name: str) -> Strategy:
    return cast(Strategy, importlib.import_module(f"disttrain.parallel.{name}"))
