"""Exposed communication of `fully_shard`: the step clock times each collective.

On a CPU a call returns when the collective is done, so all of its time is exposed. All ranks call the same
collectives in the same order, so the ranks compare each collective separately.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from disttrain.parallel.backward_end import after_own_backward, at_end_of_backward
from disttrain.runtime.fully_shard_hooks import (
    Dimension,
    groups_of_mesh,
    observe,
    sharded_modules,
    why_unobservable,
)
from disttrain.runtime.process_group import World
from disttrain.telemetry.loop.gradient_outputs import grad_tensors
from disttrain.telemetry.step_clock import (
    CONTROL_SYNC,
    OTHER,
    REPLICATE_SYNC,
    SHARD_SYNC,
    StepClock,
    control_sync,
)

COMM_METHOD = "fsdp_custom_collectives"
"""Method: duration of each call of FSDP2's all-gather and reduce-scatter, anywhere in a step."""

PHASE_OF_DIMENSION: dict[Dimension, int] = {"shard": SHARD_SYNC, "replicate": REPLICATE_SYNC}
"""Phase of the clock for a collective over one dimension of a mesh with two."""


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


def not_timed(model: nn.Module, world: World) -> str | None:
    """Reason why `FsdpExposed` cannot measure exposed communication; None if it can."""
    if world.device.type != "cpu":
        return (
            f"on {world.device.type} the collectives of fully_shard run concurrently with compute, so the "
            "duration of a call is not the time that compute waits"
        )
    modules = (module for module in model.modules() if isinstance(module, FSDPModule))
    return next((reason for module in modules if (reason := why_unobservable(module))), None)


def comm_groups(model: nn.Module) -> dict[int, dist.ProcessGroup]:
    """This rank's process group of each phase in `ClockedStep.within`."""
    return {PHASE_OF_DIMENSION[name]: group for name, group in groups_of_mesh(model).items()}


class FsdpExposed:
    """Times each collective of a model as control synchronisation of its process group, until `close`.

    Args:
        model: a model for which `not_among_all` and `not_timed` return None.
        clock: returns the current step clock.
    """

    def __init__(self, model: nn.Module, world: World, clock: Callable[[], StepClock]) -> None:
        self._clock = clock
        self._ranks = world.size
        self._missed: str | None = None
        self._hook = model.register_forward_hook(self._forward_done)
        self._restore = [observe(module, self) for module in sharded_modules(model)]
        self._groups = groups_of_mesh(model)

    def missed(self, stepped: bool) -> str | None:
        """At the end of a step: the reason why some of its communication was not timed; None if all was."""
        missed, self._missed = self._missed, None
        return missed

    def close(self) -> None:
        """Restore the original collectives."""
        self._hook.remove()
        for restore in self._restore:
            restore()

    def around(self, dimension: Dimension, group: dist.ProcessGroup) -> AbstractContextManager[None]:
        if not self._groups and group.size() != self._ranks:
            self._missed = f"a collective was among {group.size()} of {self._ranks} ranks"
        phase = PHASE_OF_DIMENSION[dimension] if self._groups else CONTROL_SYNC
        return control_sync(self._clock(), phase)

    def returned_early(self) -> None:
        self._missed = "an unshard was asynchronous, and the time that compute waited for it is unknown"

    def _forward_done(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            after_own_backward(list(grad_tensors(output)), self._own_backward_done)

    def _own_backward_done(self) -> None:
        # runs after FSDP2's callback, already queued, which scatters the last gradients
        at_end_of_backward(lambda: self._clock().switch(OTHER))
