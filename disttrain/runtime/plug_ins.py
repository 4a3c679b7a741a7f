"""Plug-ins that the config names: a module of a package of the trainer, or `package.module:name`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from disttrain.errors import ConfigError


def place_of(package: str, name: str) -> tuple[str, str]:
    """Module and attribute that a name in the config stands for."""
    module, _, foreign = name.partition(":")
    return (module, foreign) if foreign else (f"{package}.{name}", "build")


def load_plug_in(key: str, package: str, name: str) -> Callable[..., Any]:
    """The callable `build` of module `package`.`name`, or the foreign one that `name` names.

    Raises `ConfigError`, for the config key `key`, for a name that leads to no callable.
    """
    module, attribute = place_of(package, name)
    try:
        plug_in: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key}={name!r} cannot be imported: {error}") from None
    if not callable(plug_in):
        raise ConfigError(f"{key}={name!r} is {type(plug_in).__name__}, not a callable")
    return plug_in
