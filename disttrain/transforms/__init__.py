"""Transforms: functions `nn.Module -> nn.Module`, applied to a model before the strategy makes it parallel.

Activation checkpointing, compilation and offload belong here. A transform keeps the names and the order of
the parameters, so that a checkpoint fits with and without it. `model.transforms` names them, in the order in
which they are applied, as `package.module:callable`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from torch import nn

from disttrain.errors import ConfigError

Transform = Callable[[nn.Module], nn.Module]


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
