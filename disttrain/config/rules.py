"""A rule on values of several config keys: the condition, and a sentence with what works instead."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import flat_values
from disttrain.errors import as_text, either

ANY, SET = object(), object()
"""Every value of a key; every value but its default."""
NO_EFFECT = "has no effect with"
_DEFAULTS = flat_values(Config().as_dict())


class Not:
    """Every value of a key but these."""

    def __init__(self, *values: Any) -> None:
        self.values = values


@dataclass(frozen=True)
class Rule:
    """A condition on a config, and why it is refused or without effect.

    A message begins with the keys of `when` and their values; an error is placed at the first key.
    """

    when: Mapping[str, Any]
    """By dotted key: a value, a tuple of values, `Not`, `ANY` or `SET`."""
    why: str
    """The reason, and what works. `{}` stands for the result of `also`."""
    also: Callable[[Config], Any] = lambda config: True
    """A further condition: not false, zero or None."""
    verb: str = "does not go with"
    """Between the first key and the others."""

    @functools.cached_property
    def key(self) -> str:
        return next(iter(self.when))

    def has_option(self, flat: Mapping[str, Any]) -> bool:
        """Whether the first key has such a value."""
        return _holds(self.when[self.key], flat.get(self.key), self.key)

    def applies(self, config: Config, flat: Mapping[str, Any]) -> Any:
        """The result of `also` where all values hold, else False; `flat` has the config's values by key."""
        for key, wanted in self.when.items():
            if not _holds(wanted, flat.get(key), key):
                return False
        return self.also(config)

    def message(self, flats: Sequence[Mapping[str, Any]], result: Any = "") -> str:
        """The sentence for configs to which the rule applies."""
        values = (f"{key}={either(_distinct(_value(flat, key) for flat in flats))}" for key in self.when)
        return self._sentence(*values, why=self.why.replace("{}", str(result)))

    def documented(self) -> str:
        """The rule for a reader of the documents."""
        values = (f"`{key}{_described(wanted)}`" for key, wanted in self.when.items())
        return f"{' with '.join(values)}: {self.why.replace('{}', '…')}"

    def _sentence(self, first: str, *others: str, why: str) -> str:
        *most, last = others or ("",)
        beside = " and ".join(filter(None, [", ".join(most), last]))
        return f"{' '.join(filter(None, [first, self.verb, beside]))}: {why}"


def _value(flat: Mapping[str, Any], key: str) -> Any:
    """The value of a key; of a mapping, which `flat` has by its own keys, all of it."""
    inner = {name.removeprefix(f"{key}."): flat[name] for name in flat if name.startswith(f"{key}.")}
    return inner or flat.get(key)


def _holds(wanted: Any, value: Any, key: str) -> bool:
    if isinstance(wanted, Not):
        return value not in wanted.values
    if isinstance(wanted, tuple):
        return value in wanted
    if wanted is SET:
        return bool(value != _DEFAULTS[key])
    return wanted is ANY or bool(value == wanted)


def _described(wanted: Any) -> str:
    if wanted is ANY or wanted is SET:
        return ""
    if isinstance(wanted, Not):
        return f"≠{either(map(as_text, wanted.values))}"
    return f"={either(map(as_text, wanted if isinstance(wanted, tuple) else (wanted,)))}"


def _distinct(values: Iterable[Any]) -> list[str]:
    """The different values as text, as in YAML, in order of appearance."""
    return list(dict.fromkeys(map(as_text, values)))
