"""Time each layer in isolated passes after the last step: forward and backward seconds.

A layer is a module with trainable parameters of its own. The passes are isolated because hooks on every layer
would slow each training step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn

from disttrain.data.source import Batch
from disttrain.engine.step import Stepper
from disttrain.records.json_files import write_json
from disttrain.records.layers import Layers, LayerTime
from disttrain.telemetry.recorder import Recorder
from disttrain.telemetry.step_clock import make_clock

_WARM_UP = 2
"""Untimed passes before the timed ones."""
Layer = tuple[str, list[nn.Parameter]]
"""Name and parameters."""
Instant = tuple[str | None, float]
"""Name and time, in seconds from an arbitrary origin, of a layer's end in the forward pass, or of one of its
gradients; without a name, a boundary of a pass: begin, end of the forward pass, end."""


def write_layer_times(stepper: Stepper, batch: Batch, recorder: Recorder) -> None:
    """Time every layer and write the times of rank 0. All ranks together."""
    passes = recorder.config.telemetry.layer_passes
    layers = layer_times(stepper, batch, passes)
    if recorder.world.rank != 0 or recorder.attempt.superseded() is not None:
        return
    record = Layers(
        attempt=recorder.attempt.number,
        device=recorder.metrics_fields["device"],
        emulated=recorder.config.emulated,
        passes=passes,
        samples=recorder.metrics_fields["local_batch_size"],
        dtype_bytes=next(stepper.unwrapped_model.parameters()).element_size(),
        layers=layers,
    )
    write_json(recorder.attempt.layers, record)


def layer_times(stepper: Stepper, batch: Batch, passes: int) -> list[LayerTime]:
    """Mean seconds of each layer over `passes` passes on `batch`, on this rank."""
    layers = _layers(stepper.unwrapped_model)
    timed = [_instants(stepper, batch, layers) for _ in range(_WARM_UP + passes)][_WARM_UP:]
    sizes = {name: sum(p.nbytes for p in parameters) for name, parameters in layers}
    return mean_layer_times(timed, sizes)


def mean_layer_times(passes: list[list[Instant]], sizes: dict[str, int]) -> list[LayerTime]:
    """Mean seconds of each layer, in order of the forward pass; `sizes` are the layers' bytes.

    Each pass is divided at the instants of its layers, so the seconds of all layers sum to the pass."""
    seconds: dict[tuple[int, str], float] = defaultdict(float)
    """By direction (1: forward, 2: backward) and layer, in order of their last instants."""
    for instants in passes:
        direction, layer, before = 0, "", 0.0
        for name, at in instants:
            layer = name or layer  # the rest of a direction belongs to its last layer
            # a checkpointed layer is computed again before its gradients: its last instant gives its place
            seconds[direction, layer] = seconds.pop((direction, layer), 0.0) + at - before
            direction, before = direction + (name is None), at
    backward = [name for direction, name in seconds if direction == 2]
    return [
        LayerTime(
            name=name,
            bytes=sizes[name],
            forward_s=seconds[1, name] / len(passes),
            backward_s=seconds[2, name] / len(passes),
        )
        for name in dict.fromkeys([*reversed(backward), *sizes])
    ]


def _layers(model: nn.Module) -> list[Layer]:
    """The layers; a shared parameter belongs to its first one."""
    seen: set[nn.Parameter] = set()
    layers = []
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad and p not in seen]
        seen.update(own)
        if own:
            layers.append((name, own))
    return layers


def _instants(stepper: Stepper, batch: Batch, layers: list[Layer]) -> list[Instant]:
    """The instants of one pass."""
    model = stepper.unwrapped_model
    clock = make_clock(next(model.parameters()).device)
    instants: list[tuple[str | None, Any]] = []

    def recorder_of(name: str | None) -> Callable[..., None]:
        return lambda *_: instants.append((name, clock.instant()))

    with ExitStack() as hooks:
        for name, parameters in layers:
            record = recorder_of(name)
            hooks.callback(model.get_submodule(name).register_forward_hook(record).remove)
            for parameter in parameters:
                hooks.callback(parameter.register_post_accumulate_grad_hook(record).remove)
        stepper.isolated_pass(batch, recorder_of(None))
    begin, end = instants[0][1], instants[-1][1]
    clock.wait(end)
    return [(name, clock.between_s(begin, instant)) for name, instant in instants]
