"""Time each layer in isolated passes after the last step: forward and backward seconds.

A layer is a module with trainable parameters of its own. The passes are isolated because hooks on every layer
would slow each training step.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from disttrain.data.source import Batch
from disttrain.engine.step import Stepper
from disttrain.records.json_files import write_json
from disttrain.records.layers import Layers, LayerTime
from disttrain.telemetry.recorder import Recorder
from disttrain.telemetry.step_clock import make_clock

_WARM_UP = 2
"""Untimed passes before the timed ones."""


@dataclass
class Timeline:
    """Times of one pass, in seconds from an arbitrary origin."""

    forward: list[tuple[str, float]] = field(default_factory=list)
    """End of each layer's forward, in order of time; a layer that is called twice has two entries."""
    backward: list[tuple[str, float]] = field(default_factory=list)
    """Layer and time of each parameter's accumulated gradient."""
    begins: dict[str, float] = field(default_factory=dict)
    """Starts of `forward` and `backward`, and the `end` of the pass."""


def write_layer_times(stepper: Stepper, batch: Batch, recorder: Recorder) -> None:
    """Time every layer and write the times of rank 0. All ranks together."""
    passes = recorder.config.telemetry.layer_passes
    layers = layer_times(stepper, batch, passes)
    if recorder.world.rank != 0 or recorder.attempt.superseded() is not None:
        return
    found = Layers(
        attempt=recorder.attempt.number,
        device=recorder.metrics_fields["device"],
        emulated=recorder.config.emulated,
        passes=passes,
        samples=recorder.metrics_fields["local_batch_size"],
        dtype_bytes=next(stepper.unwrapped_model.parameters()).element_size(),
        layers=layers,
    )
    write_json(recorder.attempt.layers, found.model_dump(mode="json"))


def layer_times(stepper: Stepper, batch: Batch, passes: int) -> list[LayerTime]:
    """Mean seconds of each layer over `passes` passes on `batch`, on this rank."""
    model = stepper.unwrapped_model
    owned = {name: own for name, module in model.named_modules() if (own := _trained(module))}
    lines = []
    for index in range(_WARM_UP + passes):
        line = _timed(stepper, batch, list(owned))
        if index >= _WARM_UP:
            lines.append(line)
    sizes = {name: sum(p.numel() * p.element_size() for p in own) for name, own in _distinct(owned).items()}
    return mean_layer_times(lines, sizes)


def mean_layer_times(lines: list[Timeline], sizes: dict[str, int]) -> list[LayerTime]:
    """Mean seconds of each layer, in order of the forward pass; `sizes` are the layers' bytes.

    Each pass is divided at the ends of its layers, so the seconds of all layers sum to the pass."""
    forward, backward = dict.fromkeys(sizes, 0.0), dict.fromkeys(sizes, 0.0)
    ready: dict[str, float] = dict.fromkeys(sizes, 0.0)
    for line in lines:
        ends = [(name, at) for name, at in line.forward if name in sizes]
        _add(forward, ends, line.begins["forward"], line.begins["backward"])
        last = dict(line.backward)  # the latest of each layer's gradients
        order = sorted(last.items(), key=lambda item: item[1])
        _add(backward, order, line.begins["backward"], line.begins["end"])
        for name, at in order:
            ready[name] += at - line.begins["backward"]
    names = sorted(sizes, key=ready.__getitem__, reverse=True)
    return [
        LayerTime(
            name=name,
            bytes=sizes[name],
            forward_s=forward[name] / len(lines),
            backward_s=backward[name] / len(lines),
        )
        for name in names
    ]


def _add(sums: dict[str, float], ends: list[tuple[str, float]], begin: float, end: float) -> None:
    for index, (name, at) in enumerate(ends):
        until = end if index == len(ends) - 1 else at
        sums[name] += until - begin
        begin = until


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters(recurse=False) if p.requires_grad]


def _distinct(owned: dict[str, list[nn.Parameter]]) -> dict[str, list[nn.Parameter]]:
    """Assign a shared parameter to its first layer; omit layers without other parameters."""
    seen: set[int] = set()
    found = {}
    for name, own in owned.items():
        first = [p for p in own if id(p) not in seen]
        seen.update(map(id, own))
        if first:
            found[name] = first
    return found


def _timed(stepper: Stepper, batch: Batch, names: list[str]) -> Timeline:
    model = stepper.unwrapped_model
    device = next(model.parameters()).device
    clock = make_clock(device)
    forward: list[tuple[str, Any]] = []
    backward: list[tuple[str, Any]] = []
    begins: dict[str, Any] = {}
    with ExitStack() as hooks:
        modules = {name: model.get_submodule(name) for name in names}
        for name, module in modules.items():

            def ended(*_: object, name: str = name) -> None:
                forward.append((name, clock.instant()))

            hooks.callback(module.register_forward_hook(ended).remove)
        for name, own in _distinct({name: _trained(module) for name, module in modules.items()}).items():

            def ready(_: torch.Tensor, name: str = name) -> None:
                backward.append((name, clock.instant()))

            for parameter in own:
                hooks.callback(parameter.register_post_accumulate_grad_hook(ready).remove)

        def begun(part: str) -> None:
            begins[part] = clock.instant()

        stepper.isolated_pass(batch, begun)
    clock.wait(begins["end"])
    since_begin_s = partial(clock.between_s, begins["forward"])
    return Timeline(
        [(name, since_begin_s(instant)) for name, instant in forward],
        [(name, since_begin_s(instant)) for name, instant in backward],
        {part: since_begin_s(instant) for part, instant in begins.items()},
    )
