"""Exposed communication of a user's loop, of DDP and of `fully_shard`, by hooks on its model.

DDP: from the end of this rank's own backward pass to the end of `backward()`, and the broadcast of buffers.
`fully_shard`: each wait for a collective. All ranks call the same collectives in the same order, so the ranks
compare each one separately.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
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


class DdpExposed:
    """Switches the clock to COMM at the end of this rank's own backward pass and to CONTROL_SYNC while DDP
    broadcasts buffers, until `close`."""

    def __init__(self, model: DistributedDataParallel, clock: Callable[[], StepClock]) -> None:
        self._clock = clock
        self._detected = False
        self._reason = "no gradient passed through the output of the model"
        self._last_gradient = _LastGradient(model)
        self._hook = model.register_forward_hook(self._forward_done)
        self._unwrap_broadcast = wrap_buffer_broadcast(model, lambda: control_sync(clock()))

    def missed(self, stepped: bool) -> str | None:
        """At the end of a step: the reason why its exposed communication was not measured. None if it was, or
        if the optimizer has not `stepped`."""
        detected, self._detected = self._detected, False
        return self._reason if stepped and not detected else None

    def close(self) -> None:
        self._hook.remove()
        self._unwrap_broadcast()
        self._last_gradient.close()

    def _forward_done(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        outputs = list(grad_tensors(output))
        after_own_backward(outputs, self._own_backward_done)
        if not outputs:
            self._reason = (
                "no tensor that requires a gradient was found in the model's output "
                f"({type(output).__name__}), so the end of the rank's own backward pass is unknown"
            )

    def _own_backward_done(self) -> None:
        if self._last_gradient.was_nested():
            self._reason = (
                "the last gradients come from a reentrant checkpoint, within which DDP waits for other "
                "ranks; use_reentrant=False makes exposed communication measurable"
            )
            return
        self._detected = True
        self._clock().switch(COMM)
        # runs after the reducer's callback, which is already queued
        at_end_of_backward(lambda: self._clock().switch(OTHER))


class _LastGradient:
    """Whether the last gradient of the first backward pass was computed in a nested pass.

    A reentrant checkpoint starts a nested pass. DDP's callback then runs at the end of that pass, not of the
    outer one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._pass: int | None = None
        self._nested: bool | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._record)
            for parameter in model.parameters()
            if parameter.requires_grad
        ]

    def was_nested(self) -> bool:
        """Call at the end of each outer pass; the result of the first pass holds for all."""
        if self._nested is None and self._pass is not None:
            self._nested = self._pass != torch._C._current_graph_task_id()
            self.close()
        return bool(self._nested)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _record(self, parameter: Tensor) -> None:
        self._pass = torch._C._current_graph_task_id()


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


def grad_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors that require a gradient, at any depth of tuples, lists, mappings, dataclasses and
    containers registered with torch's pytree."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            if leaf.requires_grad:
                yield leaf
        elif isinstance(leaf, Mapping):  # a class that is not registered with pytree
            for value in leaf.values():
                yield from grad_tensors(value)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                yield from grad_tensors(getattr(leaf, field.name, None))
