"""Command-line overrides: `--set key=value`, `--set key=a,b,c` (an axis), and flags such as `--nodes`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from disttrain.config.parsing import parse_value
from disttrain.errors import ConfigError

_BRACKETS = {"[": "]", "{": "}", "(": ")"}
_QUOTED = re.compile(
    r"""
    " (?: \\. | [^"\\] )* "
  | ' (?: '' | [^'] )* '
""",
    re.VERBOSE,
)
"""Text in quotes, with the escapes of YAML: backslashes in double quotes, a doubled quote in single ones."""


@dataclass(frozen=True)
class Override:
    """One config key of the command line, with one value, or with the values of an axis."""

    key: str
    values: tuple[Any, ...]
    origin: str
    """The flag, for messages: `--set`, `--nodes`, ..."""
    axis: bool


def parse_set(assignment: str) -> Override:
    """Parse `key=value` or `key=a,b`. Commas outside brackets and quotes separate the values of an axis.

    Raises `ConfigError` for a missing key or an empty value.
    """
    key, equals, text = assignment.partition("=")
    key = key.strip()
    if not equals or not key:
        hint = " (a file goes before the options)" if assignment.endswith((".yaml", ".yml")) else ""
        raise ConfigError(f"{assignment!r} is not of the form key=value{hint}", at="--set")
    parts = split_values(text)
    if any(not part for part in parts):
        raise ConfigError(f"{key} has an empty value; write null for none", at="--set")
    values = tuple(parse_value(part, "--set") for part in parts)
    return Override(key, values, "--set", axis=len(values) > 1)


def parse_flag(flag: str, key: str, words: Iterable[str]) -> Override:
    """Parse the axis of a flag such as `--nodes 1 2 4` (or `1,2,4`)."""
    parts = [part for word in words for part in split_values(word)]
    return Override(key, tuple(parse_value(part, flag) for part in parts), flag, axis=True)


def check_distinct(overrides: Iterable[Override]) -> None:
    """Raise `ConfigError` for a key that is given twice: neither value takes precedence."""
    seen: dict[str, str] = {}
    for override in overrides:
        if override.key in seen:
            first = seen[override.key]
            others = f" (first by {first})" if first != override.origin else ""
            raise ConfigError(f"{override.key} is given twice{others}", at=override.origin)
        seen[override.key] = override.origin


def split_values(text: str) -> list[str]:
    """Split at top-level commas: `a,[b, c],"d,e"` is `a`, `[b, c]` and `"d,e"`.

    A quote within a word, as in `it's`, and one without an end are plain characters.
    """
    parts, start, position = [], 0, 0
    closing: list[str] = []
    while position < len(text):
        quoted = None if text[position - 1 : position].isalnum() else _QUOTED.match(text, position)
        if quoted:
            position = quoted.end()
            continue
        char = text[position]
        if char in _BRACKETS:
            closing.append(_BRACKETS[char])
        elif closing and char == closing[-1]:
            closing.pop()
        elif char == "," and not closing:
            parts.append(text[start:position].strip())
            start = position + 1
        position += 1
    return [*parts, text[start:].strip()]
