"""The emulated model: layers that take the seconds of a table and have real parameters and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from disttrain.data.source import Source
from disttrain.models.emulation import sharded
from disttrain.models.emulation.device import Device, Waiting, each_after, make_device
from disttrain.models.emulation.table import Layer, Table
from disttrain.models.hooks import Item, ModelHooks

_LEAST = 0.1
"""Smallest factor of a pass, for jitter below its mean."""
_DTYPES = {2: torch.bfloat16, 4: torch.float32}


@dataclass(frozen=True)
class Speed:
    """Deviation of this rank from the table, in seconds of a forward and a backward pass together."""

    rank: int = 0
    jitter_s: float = 0.0
    """Standard deviation of a normal distribution, drawn anew for each step."""
    slow_s: float = 0.0
    slow_factor: float = 1.0
    slow_steps: tuple[int, int] | None = None
    """First and last step with `slow_s` and `slow_factor`; None: all."""
    seed: int = 0

    def factor(self, step: int, pass_s: float) -> float:
        """Factor of every layer's seconds in this step; a function of rank and step alone."""
        if not pass_s:
            return 1.0
        first, last = self.slow_steps or (step, step)
        slow = first <= step <= last
        extra_s, slow_factor = (self.slow_s, self.slow_factor) if slow else (0.0, 1.0)
        if self.jitter_s:
            draw = np.random.default_rng([self.seed, self.rank, step]).standard_normal()
            extra_s += self.jitter_s * draw
        return max(_LEAST, slow_factor + extra_s / pass_s)


class Emulated(nn.Module, ModelHooks):
    """Layers that take the time of their table; inputs of any shape, constant outputs of the task's shape.

    Nothing is learned: the gradient of the constant is spread evenly over each layer's parameters.
    """

    has_real_gradients = False

    def __init__(self, table: Table, source: Source, speed: Speed) -> None:
        super().__init__()
        self.table = table
        self.speed = speed
        self.clock = _Clock()
        self.layers = nn.ModuleList(
            EmulatedLayer(layer, _DTYPES[table.dtype_bytes], self.clock) for layer in table.layers
        )
        self._output = (*source.shape, source.classes) if source.task == "language" else (source.classes,)
        self._steps = 0
        self._error_before_s = 0.0  # of passes that belong to no step
        self._step_factor = speed.factor(0, table.forward_s + table.backward_s)

    def on_step(self, step: int) -> None:
        """Count the passes from here on to optimizer step `step`, with its jitter."""
        if not self._steps:
            self._error_before_s = self._error_sum_s() or 0.0
        self._steps += 1
        self._step_factor = self.speed.factor(step, self.table.forward_s + self.table.backward_s)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        before_s = self._error_sum_s() or 0.0
        try:
            yield
        finally:
            self._error_before_s += (self._error_sum_s() or 0.0) - before_s

    def make_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer of `optimizer_s`; None for a real one."""
        seconds = self.table.optimizer_s
        return None if seconds is None else EmulatedOptimizer(self, seconds)

    def wrap_batches(self, batches: Iterator[Item], samples: int, device: torch.device) -> Iterator[Item]:
        """Delay each micro-batch by `input_s` of the table."""
        if not self.table.input_s:
            return batches
        return each_after(self.table.input_s * self.table.share(samples), batches, make_device(device))

    def report(self) -> Mapping[str, float | str]:
        """`emulation_late_s`: mean seconds per step by which passes ended late, or why that is unknown."""
        error_s = self.timing_error_s
        if error_s is not None:
            return {"emulation_late_s": error_s}
        no_steps = "this attempt did no step"
        return {
            "emulation_late_s": "the device does not report when a pass ended" if self._steps else no_steps
        }

    def model_section(self) -> Mapping[str, Any]:
        return {"kind": "emulated"}

    @property
    def timing_error_s(self) -> float | None:
        """Mean seconds per step by which passes ended later than their deadline; None where unknown."""
        sum_s = self._error_sum_s()
        return (sum_s - self._error_before_s) / self._steps if sum_s is not None and self._steps else None

    def _error_sum_s(self) -> float | None:
        return self.clock.device.timing_error_s if self.clock.ready else None

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.is_meta:  # a pass that computes shapes takes no time
            return inputs.new_empty((len(inputs), *self._output), dtype=torch.float32)
        self.clock.begin(inputs.device, self.table.share(len(inputs)) * self._step_factor)
        device = self.clock.device
        if isinstance(device, Waiting):  # other devices work in stream order
            sharded.pause_in_collectives(self, device)
        x = torch.zeros((), device=inputs.device, requires_grad=torch.is_grad_enabled())
        x = _Edge.apply(x, device.end)
        for layer in self.layers:
            x = layer(x)
        if torch.is_grad_enabled():
            device.end()
        # a tensor of its own, not a view, because fully_shard registers a hook on it
        return _Edge.apply(x.expand(len(inputs), *self._output), device.start)


class EmulatedLayer(nn.Module):
    def __init__(self, layer: Layer, dtype: torch.dtype, clock: _Clock) -> None:
        super().__init__()
        self.layer = layer
        self.clock = clock
        numbers = layer.bytes // dtype.itemsize
        self.weight = nn.Parameter(torch.zeros(numbers, dtype=dtype)) if numbers else None

    def forward(self, x: Tensor) -> Tensor:
        return _LayerPass.apply(x, self.weight, self.layer, self.clock)

    def extra_repr(self) -> str:
        return repr(self.layer)


class EmulatedOptimizer(torch.optim.Optimizer):
    """Takes the seconds of the table and leaves the parameters unchanged."""

    def __init__(self, model: Emulated, seconds: float) -> None:
        super().__init__(model.parameters(), {"lr": 0.0})
        self._clock = model.clock
        self._seconds = seconds

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        device = self._clock.device
        device.start()
        device.advance(self._seconds)


class _Clock:
    """The device of a model's passes. Created in the first pass, when the model's placement is known."""

    def __init__(self) -> None:
        self._device: Device | None = None
        self._factor = 1.0

    @property
    def ready(self) -> bool:
        return self._device is not None

    @property
    def device(self) -> Device:
        assert self._device is not None, "created in the first forward pass"
        return self._device

    def begin(self, device: torch.device, factor: float) -> None:
        if self._device is None:
            self._device = make_device(device)
        self._factor = factor
        self._device.start()

    def advance(self, seconds: float) -> None:
        self.device.advance(seconds * self._factor)


class _LayerPass(torch.autograd.Function):
    """Forward and backward of one layer. Each returns after its seconds, so a gradient is ready when its
    layer is done."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, layer: Layer, clock: _Clock) -> Tensor:
        ctx.weight, ctx.layer, ctx.clock = weight, layer, clock
        clock.advance(layer.forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        own = None
        if ctx.weight is not None:
            # allocated before `advance`, so that the layer's seconds include it
            own = torch.empty_like(ctx.weight).fill_(gradient)
        ctx.clock.advance(ctx.layer.backward_s)
        return gradient, own, None, None


class _Edge(torch.autograd.Function):
    """The identity; `passed` is called when the backward pass reaches it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, passed: Callable[[], None]) -> Tensor:
        ctx.passed = passed
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.passed()
        return gradients[0], None
