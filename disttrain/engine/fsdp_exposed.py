"""Exposed communication of `fully_shard` in a user's loop: the step clock times each wait for a collective.

All ranks call the same collectives in the same order, so the ranks compare each one separately.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from disttrain.engine.gradient_outputs import grad_tensors
from disttrain.parallel.backward_end import after_own_backward, at_end_of_backward
from disttrain.parallel.fully_shard_waits import RETURNED_EARLY, time_waits
from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.runtime.process_group import World
from disttrain.telemetry.step_clock import OTHER, PHASE_OF_DIMENSION, StepClock, control_sync


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` was applied to the model or to a module in it."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def original_class(model: nn.Module) -> type:
    """The class of the model before `fully_shard` replaced it by a subclass."""
    return next(cls for cls in type(model).__mro__ if not issubclass(cls, FSDPModule))


def not_among_all(model: nn.Module, world: World) -> str | None:
    """Reason why a collective may be of another kind or among fewer than all ranks; None if none is."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not isinstance(parameter, DTensor):
            return f"{name} is not sharded, and the communication of its gradient is unknown"
        mesh = parameter.device_mesh
        if mesh.ndim > 2:
            return f"{name} is on a mesh of {mesh.ndim} dimensions, of which only two can be timed"
        if not parameter.placements[-1].is_shard():
            return f"{name} is replicated, and the all-reduce of its gradient cannot be timed"
        if mesh.size() != world.size:
            return f"{name} is sharded over {mesh.size()} of {world.size} ranks"
    return None


class FsdpExposed:
    """Times each wait for a collective as control synchronisation of its process group, until `close`.

    Args:
        model: a model for which `not_among_all` returns None and `comm_method` has a method.
        clock: returns the current step clock.
    """

    def __init__(self, model: nn.Module, clock: Callable[[], StepClock]) -> None:
        self._clock = clock
        self._missed: str | None = None
        self._hook = model.register_forward_hook(self._forward_done)
        self._restore = time_waits(model, self._timed, self._returned_early)

    def missed(self, stepped: bool) -> str | None:
        """At the end of a step: the reason why some of its communication was not timed; None if all was."""
        missed, self._missed = self._missed, None
        return missed

    def close(self) -> None:
        """Restore the original collectives."""
        self._hook.remove()
        self._restore()

    def _timed(self, dimension: Dimension | None) -> AbstractContextManager[None]:
        return control_sync(self._clock(), PHASE_OF_DIMENSION[dimension])

    def _returned_early(self) -> None:
        self._missed = RETURNED_EARLY

    def _forward_done(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            after_own_backward(list(grad_tensors(output)), self._own_backward_done)

    def _own_backward_done(self) -> None:
        # runs after FSDP2's callback, already queued, which scatters the last gradients
        at_end_of_backward(lambda: self._clock().switch(OTHER))
