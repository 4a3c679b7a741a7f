"""Exposed communication of a user's loop, of DDP and of `fully_shard`, by hooks on its model.

DDP: from the end of this rank's own backward pass to the end of `backward()`, and the broadcast of buffers.
`fully_shard`: each wait for a collective. All ranks call the same collectives in the same order, so the ranks
compare each one separately.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from disttrain.parallel.ddp import after_own_backward, at_end_of_backward, wrap_buffer_broadcast
from disttrain.parallel.fully_shard_waits import RETURNED_EARLY, time_waits
from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.runtime.process_group import World
from disttrain.telemetry.step_clock import COMM, OTHER, PHASE_OF_DIMENSION, StepClock, control_sync


class _Exposed:
    """Has the communication of `model` switch the phase of a clock, until `close`."""

    def __init__(self, model: nn.Module, clock: StepClock) -> None:
        self._clock = clock
        self._undo = ExitStack()
        self._undo.callback(model.register_forward_hook(self._forward_done).remove)
        self._end_unknown = "no gradient passed through the output of the model"
        """Why the end of the rank's own backward pass may be unknown."""

    def close(self) -> None:
        """Restore the model."""
        self._undo.close()

    def _forward_done(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        outputs = list(grad_tensors(output))
        after_own_backward(outputs, self._own_backward_done)
        if not outputs:
            self._end_unknown = (
                "no tensor that requires a gradient was found in the model's output "
                f"({type(output).__name__}), so the end of the rank's own backward pass is unknown"
            )

    def _own_backward_done(self) -> None:
        # runs after the callback of DDP or FSDP2, which is already queued
        at_end_of_backward(lambda: self._clock.switch(OTHER))


class DdpExposed(_Exposed):
    """Switches the clock to COMM at the end of this rank's own backward pass and to CONTROL_SYNC while DDP
    broadcasts buffers."""

    def __init__(self, model: DistributedDataParallel, clock: StepClock) -> None:
        super().__init__(model, clock)
        self._undo.callback(wrap_buffer_broadcast(model, lambda: control_sync(clock)))
        self._detected = self._nested = False
        self._last_gradient: int | None = None
        """The backward pass of the last gradient; known in the first step alone, which holds for all."""
        self._first_step = self._undo.enter_context(ExitStack())
        for parameter in model.parameters():
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(self._gradient_done)
                self._first_step.callback(hook.remove)

    def missed(self, stepped: bool) -> str | None:
        """At the end of a step: the reason why its exposed communication was not measured. None if it was, or
        if the optimizer has not `stepped`."""
        detected, self._detected = self._detected, False
        return self._end_unknown if stepped and not detected else None

    def _gradient_done(self, parameter: Tensor) -> None:
        self._last_gradient = torch._C._current_graph_task_id()

    def _own_backward_done(self) -> None:
        if self._last_gradient is not None:
            # in a nested pass, DDP's callback runs at the end of that pass, not of the outer one
            self._nested = self._last_gradient != torch._C._current_graph_task_id()
            self._last_gradient = None
            self._first_step.close()
        if self._nested:
            self._end_unknown = (
                "the last gradients come from a reentrant checkpoint, within which DDP waits for other "
                "ranks; use_reentrant=False makes exposed communication measurable"
            )
            return
        self._detected = True
        self._clock.switch(COMM)
        super()._own_backward_done()


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


class FsdpExposed(_Exposed):
    """Times each wait for a collective as control synchronisation of its process group.

    For a model for which `not_among_all` returns None and `comm_method` has a method.
    """

    def __init__(self, model: nn.Module, clock: StepClock) -> None:
        super().__init__(model, clock)
        self._missed: str | None = None
        self._undo.callback(time_waits(model, self._timed, self._returned_early))

    def missed(self, stepped: bool) -> str | None:
        """At the end of a step: the reason why some of its communication was not timed; None if all was."""
        missed, self._missed = self._missed, None
        return missed

    def _timed(self, dimension: Dimension | None) -> AbstractContextManager[None]:
        return control_sync(self._clock, PHASE_OF_DIMENSION[dimension])

    def _returned_early(self) -> None:
        self._missed = RETURNED_EARLY


def grad_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors that require a gradient, at any depth of tuples, lists, mappings, dataclasses and
    containers registered with torch's pytree."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            if leaf.requires_grad:
                yield leaf
        elif isinstance(leaf, Mapping):  # a class that is not registered with pytree
            yield from grad_tensors(list(leaf.values()))
        elif dataclasses.is_dataclass(leaf):
            yield from grad_tensors([getattr(leaf, field.name, None) for field in dataclasses.fields(leaf)])
