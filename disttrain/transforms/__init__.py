"""Transforms: functions `nn.Module -> nn.Module`, applied to a model before the strategy makes it parallel.

A transform keeps the names and the order of the parameters, so that a checkpoint fits with and without it.
Those that `model.transforms` names come first, in this order; then those of the section `memory`, and
compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError
from disttrain.runtime.plug_ins import load_plug_in
from disttrain.transforms.activations import checkpoint_activations, offload_activations
from disttrain.transforms.compilation import compile_model

Transform = Callable[[nn.Module], nn.Module]


def transforms_of(config: Config, device: torch.device) -> list[Transform]:
    """The transforms of a run that computes on `device`, in the order in which they are applied. Raises
    `ConfigError`."""
    transforms, memory = [load_transform(name) for name in config.model.transforms], config.memory
    mode = memory.activation_checkpointing
    if mode != "none":
        transforms.append(partial(checkpoint_activations, mode=mode, every=memory.every_blocks or 1))
    if memory.offload_activations:
        transforms.append(partial(offload_activations, device=device))
    if memory.loss_chunk_tokens is not None:
        transforms.append(partial(chunk_loss, tokens=memory.loss_chunk_tokens))
    if config.compile.scope != "none":
        transforms.append(partial(compile_model, options=config.compile))
    return transforms


def chunk_loss(model: nn.Module, tokens: int) -> nn.Module:
    """Have a GPT compute its loss for `tokens` tokens at a time; the model itself."""
    vars(model)["loss_chunk_tokens"] = tokens
    return model


def load_transform(name: str) -> Transform:
    """The transform that `model.transforms` names: `build` of a module of this package, or
    `package.module:callable`. Raises `ConfigError`."""
    build = load_plug_in("model.transforms", __name__, name)

    def transform(model: nn.Module) -> nn.Module:
        names = [parameter for parameter, _ in model.named_parameters()]
        changed = build(model)
        if not isinstance(changed, nn.Module):
            raise ConfigError(
                f"model.transforms={name!r} returned {type(changed).__name__}, not an nn.Module"
            )
        if names != [parameter for parameter, _ in changed.named_parameters()]:
            raise ConfigError(
                f"model.transforms={name!r} changed the names or the order of the parameters, by which "
                "checkpoints hold them"
            )
        return changed

    return transform
