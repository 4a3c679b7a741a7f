"""One rank: nothing to wrap, nothing to communicate."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn

from disttrain.config.sections import ParallelConfig
from disttrain.runtime.process_group import World

COMM_METHOD = None
PRIMES_BUCKETS = False


def wrap(model: nn.Module, config: ParallelConfig, world: World) -> nn.Module:
    return model


def without_sync(model: nn.Module) -> AbstractContextManager[None]:
    return nullcontext()


def no_comm(model: nn.Module) -> AbstractContextManager[None]:
    return nullcontext()


def unwrap(model: nn.Module) -> nn.Module:
    return model
