"""Exposed communication of DDP in a user's loop, timed from hooks on the model's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from disttrain.parallel.backward_hooks import after_own_backward, at_end_of_backward
from disttrain.telemetry.gradient_outputs import grad_tensors
from disttrain.telemetry.step_clock import COMM, OTHER, StepClock


class DdpExposed:
    """Switches the clock to COMM at the end of this rank's own backward pass, until `close`."""

    def __init__(self, model: nn.Module, clock: Callable[[], StepClock]) -> None:
        self._clock = clock
        self._heard = False
        self._why_not = "no gradient came by way of what the model returned"
        self._last_gradient = _LastGradient(model)
        self._hook = model.register_forward_hook(self._forward_done)

    def missed(self, stepped: bool) -> str | None:
        """At the end of a step: why no tail was heard in it; None if one was, or if the optimizer has not
        stepped, as where there was nothing to learn from."""
        heard, self._heard = self._heard, False
        return self._why_not if stepped and not heard else None

    def close(self) -> None:
        self._hook.remove()
        self._last_gradient.close()

    def _forward_done(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        outputs = list(grad_tensors(output))
        after_own_backward(outputs, self._own_backward_done)
        if not outputs:
            self._why_not = (
                f"in the {type(output).__name__} that the model returned no tensor was found that requires a "
                "gradient, so when its own backward pass ends is not known"
            )

    def _own_backward_done(self) -> None:
        if self._last_gradient.was_nested():
            self._why_not = (
                "the last gradients come from a reentrant checkpoint, within which DDP waits for the others; "
                "with use_reentrant=False that would be seen"
            )
            return
        self._heard = True
        self._clock().switch(COMM)
        # the reducer's own callback is queued by now, so this one runs when it is done
        at_end_of_backward(lambda: self._clock().switch(OTHER))


class _LastGradient:
    """Whether the last gradient of the first backward pass came in a pass within it.

    A reentrant checkpoint makes one. DDP's callback then runs at the end of that pass, not of the outer one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._pass: int | None = None
        self._nested: bool | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._note)
            for parameter in model.parameters()
            if parameter.requires_grad
        ]

    def was_nested(self) -> bool:
        """To be asked at the end of each outer pass; found out in the first, as all are alike."""
        if self._nested is None and self._pass is not None:
            self._nested = self._pass != torch._C._current_graph_task_id()
            self.close()
        return bool(self._nested)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note(self, parameter: Tensor) -> None:
        self._pass = torch._C._current_graph_task_id()
