"""Emulated model: its layers take stated seconds instead of computing (docs/emulation.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from disttrain.errors import ConfigError
from disttrain.models.emulated_device import (
    DeadlineTimer,
    Device,
    each_after,
    make_device,
    pause_in_collectives,
)
from disttrain.models.hooks import Item, ModelHooks
from disttrain.records.dataset import DataShape
from disttrain.records.layers import LayerTable, LayerTime, parse_table
from disttrain.runtime.process import rank_info

FILE_OPTIONS = ("table",)
"""Options that may name a YAML or JSON file; the run stores the content of the file."""
_LEAST_FACTOR = 0.1
"""Smallest factor of a pass, for jitter below its mean."""
_DTYPES = {2: torch.bfloat16, 4: torch.float32}


def build(
    source: DataShape,
    *,
    table: str | list[Any] | dict[str, Any] | None = None,
    layers: PositiveInt = 8,
    layer_mb: NonNegativeFloat = 4.0,
    forward_s: NonNegativeFloat = 0.16,
    backward_s: NonNegativeFloat = 0.32,
    dtype_bytes: Literal[2, 4] = 4,
    optimizer_s: NonNegativeFloat | None = None,
    jitter_s: NonNegativeFloat = 0.0,
    slow_ranks: tuple[int, ...] = (),
    slow_s: NonNegativeFloat = 0.0,
    slow_factor: PositiveFloat = 1.0,
    slow_steps: tuple[int, int] | None = None,
    seed: int = 0,
) -> Emulated:
    """Layers that take stated seconds, with real parameters, gradients and communication.

    Parameters
    ----------
    table : layers with name, bytes, forward_s and backward_s, as a file (.yaml, .json) or its content
        (docs/emulation.md); null: equal layers.
    layers : number of equal layers.
    layer_mb : parameters of each equal layer in MiB.
    forward_s, backward_s : seconds of a pass through all equal layers, for any batch size.
    dtype_bytes : bytes of a parameter and of its gradient in equal layers.
    optimizer_s : seconds of an emulated optimizer, which changes no parameters; null: as the table says, else
        the real one.
    jitter_s : standard deviation of the seconds of the passes of a step, normal, drawn for each step and
        rank.
    slow_ranks : ranks to which slow_s and slow_factor apply.
    slow_s : additional seconds of the passes of a step.
    slow_factor : factor of the seconds of the layers.
    slow_steps : first and last slow step; null: all.
    seed : seed of the jitter.

    Raises
    ------
    ConfigError : an option is out of range, or the table is wrong or has no parameters.
    """
    if slow_steps is not None and not 1 <= slow_steps[0] <= slow_steps[1]:
        raise ConfigError(f"model.slow_steps={list(slow_steps)}: first step from 1 on, then last step")
    if not slow_ranks and (slow_s or slow_factor != 1.0):
        raise ConfigError("model.slow_s and model.slow_factor need model.slow_ranks: which ranks?")
    if table is None:
        seconds = {"forward_s": forward_s / layers, "backward_s": backward_s / layers}
        layer = {"bytes": round(layer_mb * 2**20), **seconds}
        equal = [{"name": f"layer{index}", **layer} for index in range(layers)]
        table = {"layers": equal, "dtype_bytes": dtype_bytes}
    parsed = parse_table(table)
    if not parsed.bytes:
        raise ConfigError("model.table has no parameters: give at least one layer some bytes")
    if optimizer_s is not None:
        parsed = parsed.model_copy(update={"optimizer_s": optimizer_s})
    rank = rank_info().rank
    slow_s, slow_factor = (slow_s, slow_factor) if rank in slow_ranks else (0.0, 1.0)
    return Emulated(parsed, source, Speed(rank, jitter_s, slow_s, slow_factor, slow_steps, seed))


@dataclass(frozen=True)
class Speed:
    """Deviation of this rank from the table, in seconds of a forward and a backward pass together."""

    rank: int = 0
    jitter_s: float = 0.0
    slow_s: float = 0.0
    slow_factor: float = 1.0
    slow_steps: tuple[int, int] | None = None
    seed: int = 0

    def factor(self, step: int, pass_s: float) -> float:
        """Factor of every layer's seconds in this step; a function of rank and step alone."""
        if not pass_s:
            return 1.0
        first, last = self.slow_steps or (step, step)
        extra_s, slow_factor = (self.slow_s, self.slow_factor) if first <= step <= last else (0.0, 1.0)
        if self.jitter_s:
            draw = np.random.default_rng([self.seed, self.rank, step]).standard_normal()
            extra_s += self.jitter_s * draw
        return max(_LEAST_FACTOR, slow_factor + extra_s / pass_s)


class Emulated(nn.Module, ModelHooks):
    """Layers that take the time of their table; inputs of any shape, constant outputs of the task's shape.

    Nothing is learned: the gradient of the constant is spread evenly over each layer's parameters.
    """

    has_real_gradients = False

    def __init__(self, table: LayerTable, source: DataShape, speed: Speed) -> None:
        super().__init__()
        self.table = table
        self.speed = speed
        self.clock = _Clock()
        self.layers = nn.ModuleList(
            EmulatedLayer(layer, _DTYPES[table.dtype_bytes], self.clock) for layer in table.layers
        )
        self._output = (*source.shape, source.classes) if source.task == "language" else (source.classes,)
        self._steps = 0
        self._step_factor = 1.0
        self._set_step_factor(0)

    def _set_step_factor(self, step: int) -> None:
        self._step_factor = self.speed.factor(step, self.table.forward_s + self.table.backward_s)

    def on_step(self, step: int) -> None:
        """Count the passes from here on to optimizer step `step`, with its jitter."""
        self.clock.counts = True
        self._steps += 1
        self._set_step_factor(step)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        before, self.clock.counts = self.clock.counts, False
        try:
            yield
        finally:
            self.clock.counts = before

    def make_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer of `optimizer_s`; None for a real one."""
        seconds = self.table.optimizer_s
        return None if seconds is None else EmulatedOptimizer(self, seconds)

    def wrap_batches(self, batches: Iterator[Item], samples: int, device: torch.device) -> Iterator[Item]:
        """Delay each micro-batch by `input_s` of the table."""
        seconds = (self.table.input_s or 0.0) * self.table.share(samples)
        return each_after(seconds, batches, make_device(device)) if seconds else batches

    def report(self) -> Mapping[str, float | str]:
        """`emulation_late_s`: mean seconds per step by which passes ended late, or why that is unknown."""
        if not self._steps:
            return {"emulation_late_s": "this attempt did no step"}
        late_s = self.clock.late_s
        if late_s is None:
            return {"emulation_late_s": "the device does not report when a pass ended"}
        return {"emulation_late_s": late_s / self._steps}

    def model_section(self) -> Mapping[str, Any]:
        return {"kind": "emulated"}

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.is_meta:  # a pass that computes shapes takes no time
            return inputs.new_empty((len(inputs), *self._output), dtype=torch.float32)
        device = self.clock.start(inputs.device, self.table.share(len(inputs)) * self._step_factor)
        if isinstance(device, DeadlineTimer):  # other devices work in stream order
            pause_in_collectives(self, device)
        x = torch.zeros((), device=inputs.device, requires_grad=torch.is_grad_enabled())
        x = _Edge.apply(x, self.clock.end)
        for layer in self.layers:
            x = layer(x)
        if torch.is_grad_enabled():
            self.clock.end()
        # a tensor of its own, not a view, because fully_shard registers a hook on it
        return _Edge.apply(x.expand(len(inputs), *self._output), device.start)


class EmulatedLayer(nn.Module):
    def __init__(self, layer: LayerTime, dtype: torch.dtype, clock: _Clock) -> None:
        super().__init__()
        self.layer = layer
        self.clock = clock
        numbers = layer.bytes // dtype.itemsize
        self.weight = nn.Parameter(torch.zeros(numbers, dtype=dtype)) if numbers else None

    def forward(self, x: Tensor) -> Tensor:
        return _LayerPass.apply(x, self.weight, self.layer, self.clock)


class EmulatedOptimizer(torch.optim.Optimizer):
    """Takes the seconds of the table and leaves the parameters unchanged."""

    def __init__(self, model: Emulated, seconds: float) -> None:
        super().__init__(model.parameters(), {"lr": 0.0})
        self._clock = model.clock
        self._seconds = seconds

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self._clock.device.start()
        self._clock.device.advance(self._seconds)


class _Clock:
    """The device of a model's passes, made in the first pass, when the model's placement is known."""

    device: Device
    counts = False
    """Whether the present passes belong to a step."""
    late_s: float | None = 0.0
    """Seconds by which passes of steps ended late; None where the device does not report it."""

    def start(self, device: torch.device, factor: float) -> Device:
        if not hasattr(self, "device"):
            self.device = make_device(device)
        self._factor = factor
        self.device.start()
        return self.device

    def advance(self, seconds: float) -> None:
        self.device.advance(seconds * self._factor)

    def end(self) -> None:
        late_s = self.device.end()
        if self.counts:
            self.late_s = None if late_s is None or self.late_s is None else self.late_s + late_s


class _LayerPass(torch.autograd.Function):
    """Forward and backward of one layer. Each returns after its seconds, so a gradient is ready when its
    layer is done."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, layer: LayerTime, clock: _Clock) -> Tensor:
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
