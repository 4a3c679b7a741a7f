"""Exposed communication of DDP in a user's loop: the end of the backward pass, from hooks on the model's
output, and the broadcast of buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from disttrain.engine.gradient_outputs import grad_tensors
from disttrain.parallel.backward_end import after_own_backward, at_end_of_backward
from disttrain.parallel.ddp import wrap_buffer_broadcast
from disttrain.telemetry.step_clock import COMM, OTHER, StepClock, control_sync


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
