"""Transforms: functions `nn.Module -> nn.Module`, applied to a model before the strategy makes it parallel.

A transform keeps the names and the order of the parameters, so that a checkpoint fits with and without it.
Those that `model.transforms` names as `package.module:callable` come first, in this order; then those of the
section `memory`, and compilation.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import torch
from torch import nn

from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError
from disttrain.transforms.activation_checkpointing import checkpoint_activations
from disttrain.transforms.activation_offload import offload_activations
from disttrain.transforms.compilation import compile_model

Transform = Callable[[nn.Module], nn.Module]


def transforms_of(config: Config, device: torch.device) -> list[Transform]:
    """The transforms of a run that computes on `device`, in the order in which they are applied. Raises
    `ConfigError`."""
    found, memory = load_transforms(config.model.transforms), config.memory
    mode = memory.activation_checkpointing
    if mode != "none":
        found.append(lambda model: checkpoint_activations(model, mode, memory.every_blocks or 1))
    if memory.offload_activations:
        found.append(lambda model: offload_activations(model, device))
    if memory.loss_chunk_tokens is not None:
        found.append(lambda model: chunk_loss(model, memory.loss_chunk_tokens))
    if config.compile.scope != "none":
        found.append(lambda model: compile_model(model, config.compile))
    return found


def chunk_loss(model: nn.Module, tokens: int | None) -> nn.Module:
    """Have the model compute its loss for `tokens` tokens at a time; the model itself.

    Raises `ConfigError` for a model that cannot.
    """
    if not hasattr(model, "loss_chunk_tokens"):
        raise ConfigError(f"memory.loss_chunk_tokens={tokens}: {type(model).__name__} computes no loss")
    vars(model)["loss_chunk_tokens"] = tokens
    return model


def load_transforms(names: Sequence[str]) -> list[Transform]:
    """The functions that `model.transforms` names. Raises `ConfigError` for one that cannot be imported."""
    return [_load(name) for name in names]


def _load(name: str) -> Transform:
    module_name, _, attribute = name.partition(":")
    try:
        found: Transform = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"model.transforms: {name!r} cannot be imported: {error}") from None
    if not callable(found):
        raise ConfigError(f"model.transforms: {name!r} is {type(found).__name__}, not a callable")

    def transform(model: nn.Module) -> nn.Module:
        names = [parameter for parameter, _ in model.named_parameters()]
        made = found(model)
        if not isinstance(made, nn.Module):
            raise ConfigError(f"model.transforms: {name!r} returned {type(made).__name__}, not an nn.Module")
        if names != [parameter for parameter, _ in made.named_parameters()]:
            raise ConfigError(
                f"model.transforms: {name!r} changed the names or the order of the parameters, by which "
                "checkpoints hold them"
            )
        return made

    return transform
