"""Words of `command` and `job.env`: `{name}` is the value of an axis, of a config key or of the run."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import flat_values
from disttrain.config.parsing import SWEEP_SECTIONS
from disttrain.errors import ConfigError, either, nearest
from disttrain.records.run_json import (
    CHECKPOINT,
    LAUNCHERS,
    PLACEHOLDERS,
    doubled,
    has_placeholder,
    of_processes,
)

REPEAT = "repeat"
"""Name of the number of a repeat, from 0."""
_RESUME_ARGS = "job.resume_args"


def is_free(key: str) -> bool:
    """Whether an axis is no config key, so that only a command can use its value."""
    return key.partition(".")[0] not in {*Config.model_fields, *SWEEP_SECTIONS}


def names_in(key: str, words: Iterable[str], at: str | None = None) -> list[str]:
    """Names between the braces of the words of a key, in order. Raises `ConfigError` for a bad brace."""
    names = []
    for word in words:
        try:
            fields = list(string.Formatter().parse(word))
        except ValueError as error:
            message = f"{key}: {word!r}: {str(error).lower()}; a literal brace is {{{{ or }}}}"
            raise ConfigError(message, at=at) from None
        for _, name, form, conversion in fields:
            if name is None:
                continue
            if form or conversion or not name:
                message = f"{key}: {word!r}: braces hold a name alone; a literal brace is {{{{ or }}}}"
                raise ConfigError(message, at=at)
            names.append(name)
    return names


def filled(config: Config, axes: Mapping[str, Any], repeat: int, at: Callable[[str], str | None]) -> Config:
    """The config with the values in its command and in `job.env`, each within one word.

    `at` gives the origin of a key. `PLACEHOLDERS` stay, and in the command those of the launcher's processes.
    Raises `ConfigError` for a name that is neither an axis nor a key of the config, and for an axis that is
    unused or has the name of a placeholder.
    """
    processes = of_processes(config.job.launcher)
    own = (REPEAT, *PLACEHOLDERS, *processes, CHECKPOINT)
    words = {
        "command": config.command,
        _RESUME_ARGS: config.job.resume_args,
        **{f"job.env.{name}": (text,) for name, text in config.job.env.items()},
    }
    values = {key: value for key, value in flat_values(config.as_dict()).items() if key not in words}
    values |= {key: value for key, value in axes.items() if is_free(key)}
    values |= {name: f"{{{name}}}" for name in own} | {REPEAT: repeat}
    used: set[str] = set()
    for key, given in words.items():
        names = names_in(key, given, at(key))
        unknown = next((name for name in names if name not in values), None)
        if unknown is None:
            places = {CHECKPOINT: _RESUME_ARGS} | dict.fromkeys(processes, "command")
            unknown = next((name for name in names if places.get(name, key) != key), None)
        if unknown is not None:
            hint = _of_other_launchers(unknown, key, config.job.launcher)
            hint = hint or nearest(unknown, values) or "; a literal brace is {{ or }}"
            raise ConfigError(f"{key}: {{{unknown}}} is neither an axis nor a config key{hint}", at=at(key))
        used.update(names)
    for key in filter(is_free, axes):
        if key in own:
            raise ConfigError(f"{{{key}}} is a value of each run; give the axis another name", at=at(key))
        if key not in used:
            hint = nearest(key, used) or nearest(key, values.keys() - axes.keys())
            raise ConfigError(f"{key} is no config key, and the command has no {{{key}}}{hint}", at=at(key))
    resume = tuple(_filled(word, values, (*PLACEHOLDERS, CHECKPOINT)) for word in config.job.resume_args)
    env = {name: _filled(text, values, PLACEHOLDERS) for name, text in config.job.env.items()}
    command = tuple(_filled(word, values, (*PLACEHOLDERS, *processes)) for word in config.command)
    return config.model_copy(
        update={"command": command, "job": config.job.model_copy(update={"env": env, "resume_args": resume})},
    )


def _of_other_launchers(name: str, key: str, launcher: str) -> str:
    """A hint for a placeholder of the processes of some launcher, where it has no value; else empty."""
    others = [each for each in LAUNCHERS if name in of_processes(each)]
    if not others:
        return ""
    if launcher in others:
        return f"; its value differs by process, and {key} is the same for all: only the command may have it"
    own = ", ".join(f"{{{each}}}" for each in of_processes(launcher)) or "no such placeholders"
    return f"; job.launcher={launcher} has {own}, and job.launcher={either(others)} has {{{name}}}"


def _filled(word: str, values: Mapping[str, Any], kept: Collection[str]) -> str:
    """The word of a config: with a placeholder that is `kept`, its literal braces stay doubled."""
    plain = template = ""
    for text, name, _, _ in string.Formatter().parse(word):
        value = "" if name is None else _text(values[name])
        plain += text + value
        template += doubled(text) + (value if name in kept else doubled(value))
    return template if has_placeholder(plain, kept) else plain


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
