"""Access to nested config data by dotted key (`job.time_limit_min`). Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ABSENT = object()
"""Stands for a key that is not there; None is a value."""


def get_key(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """The value at the dotted `key`, or `default`."""
    node: Any = config
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return default
        node = node[name]
    return node


def pop_key(config: dict[str, Any], key: str) -> Any:
    """Remove and return the value at the dotted `key`. Raises `KeyError`."""
    *sections, leaf = key.split(".")
    for name in sections:
        config = config[name]
    return config.pop(leaf)


def flat_values(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value of a nested config by its dotted key, in order. An empty mapping counts as a value."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flat_values(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
