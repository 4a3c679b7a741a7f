"""Secrets among the variables of `job.env`: their values leave a config before it is checked.

A config, its run key, axes and records thus hold names of secrets alone, in `job.secrets`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from disttrain.config.dotted_keys import flat_values, get_key
from disttrain.errors import ConfigError
from disttrain.masking import is_secret

if TYPE_CHECKING:
    from disttrain.config.parsing import Draft

_ENV, _NAMES = "job.env", "job.secrets"


def take_secrets(
    draft: Draft,
    products: Sequence[Mapping[str, Iterable[Any]]] = (),
    origins: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Remove the secrets from `job.env` of a draft, add their names to `job.secrets`; the values by name.

    `products` are the values of axes by key, `origins` the origins of the axes. Raises `ConfigError` for a
    value that is no text, and for a secret among the axes, whose values are part of names and records.
    """
    data = draft.data
    env, listed = get_key(data, _ENV) or {}, get_key(data, _NAMES) or []
    if not isinstance(env, dict) or not isinstance(listed, list | tuple):
        return {}  # the check of the config refuses it
    for axes in products:
        for key, values in axes.items():
            for name in (name for value in values for name in flat_values({key: value})):
                if name != _NAMES and is_about_secrets(name, listed):
                    message = f"{name} is a secret, which cannot be an axis: give it one value, alone"
                    raise ConfigError(message, at=origins[key])
    found = {name: value for name, value in env.items() if is_secret(str(name)) or name in listed}
    for name, value in found.items():
        if not isinstance(value, str):
            message = f"{_ENV}.{name} is a secret: a text is needed; write a number in quotes"
            raise ConfigError(message, at=draft.at(f"{_ENV}.{name}"))
    if found:
        others = {name: value for name, value in env.items() if name not in found}
        data["job"] = {**data["job"], "env": others, "secrets": [*dict.fromkeys([*listed, *sorted(found)])]}
    return found


def is_about_secrets(key: str, listed: Collection[str]) -> bool:
    """Whether a dotted key is a secret of `job.env`, or `job.secrets`; `listed` are the names in it."""
    section, _, name = key.rpartition(".")
    return key == _NAMES or (section == _ENV and (is_secret(name) or name in listed))
