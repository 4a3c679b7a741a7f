"""The words of a `command` in which `{name}` stands for the value of an axis or of a config key."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import flat_values
from disttrain.config.parsing import SWEEP_SECTIONS
from disttrain.errors import ConfigError, nearest

REPEAT = "repeat"
"""Name of the number of a repeat, from 0."""


def is_free(key: str) -> bool:
    """Whether an axis is no config key, so that only a command can use its value."""
    return key.partition(".")[0] not in {*Config.model_fields, *SWEEP_SECTIONS}


def literal(words: Iterable[str]) -> tuple[str, ...]:
    """Words in which no brace stands for a value."""
    return tuple(word.replace("{", "{{").replace("}", "}}") for word in words)


def names_in(words: Iterable[str], at: str | None = None) -> list[str]:
    """Names between the braces of these words, in order. Raises `ConfigError` for a brace without a name."""
    names = []
    for word in words:
        try:
            fields = list(string.Formatter().parse(word))
        except ValueError as error:
            message = f"command: {word!r}: {str(error).lower()}; a literal brace is {{{{ or }}}}"
            raise ConfigError(message, at=at) from None
        for _, name, form, conversion in fields:
            if name is None:
                continue
            if form or conversion or not name:
                message = f"command: {word!r}: braces hold a name alone; a literal brace is {{{{ or }}}}"
                raise ConfigError(message, at=at)
            names.append(name)
    return names


def filled(config: Config, axes: Mapping[str, Any], repeat: int, at: str | None = None) -> Config:
    """The config with the values in its command, each within one word.

    Raises `ConfigError` for a name that is neither an axis nor a key of `resources` or `job`, and for an axis
    of neither the config nor the command.
    """
    values = {key: value for key, value in flat_values(config.as_dict()).items() if key != "command"}
    values |= {key: value for key, value in axes.items() if is_free(key)} | {REPEAT: repeat}
    used = names_in(config.command, at)
    unknown = next((name for name in used if name not in values), None)
    if unknown is not None:
        hint = nearest(unknown, values) or "; a literal brace is {{ or }}"
        raise ConfigError(f"command: {{{unknown}}} is neither an axis nor a config key{hint}", at=at)
    unused = next((key for key in axes if is_free(key) and key not in used), None)
    if unused is not None:
        hint = nearest(unused, used)
        raise ConfigError(f"{unused} is no config key, and the command has no {{{unused}}}{hint}", at=at)
    return config.model_copy(update={"command": _filled(config.command, values)})


def _filled(words: Sequence[str], values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        "".join(
            text + ("" if name is None else _text(values[name]))
            for text, name, _, _ in string.Formatter().parse(word)
        )
        for word in words
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
