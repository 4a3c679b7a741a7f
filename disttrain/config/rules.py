"""A rule on values of several config keys: the condition, and a sentence with what works instead."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import get_key
from disttrain.errors import as_text, either

NO_EFFECT = "has no effect with"
_DEFAULTS = Config().as_dict()


def is_built_in(key: str) -> Callable[[Config], bool]:
    """A condition: the value of the key is not `package.module:name`."""
    return lambda config: ":" not in operator.attrgetter(key)(config)


class _Condition(NamedTuple):
    key: str
    sign: str
    """`=`, `!=`, or empty: another value than the default."""
    values: list[str]

    def holds(self, plain: Mapping[str, Any]) -> bool:
        value = get_key(plain, self.key)
        if not self.sign:
            return bool(value != get_key(_DEFAULTS, self.key))
        return self.values == ["any"] or (as_text(value) in self.values) == (self.sign == "=")

    def documented(self) -> str:
        if self.values[0] in ("", "any"):
            return f"`{self.key}`"
        return f"`{self.key}{self.sign.replace('!=', '≠')}{either(self.values)}`"


@dataclass(frozen=True)
class Rule:
    """A condition on a config, and why it is refused or without effect.

    A message begins with the keys of `when` and their values; an error is placed at the first key.
    """

    when: str
    """Conditions on keys, which all hold: `key=value`, `key=value|other`, `key!=value`; `key` alone is set to
    another value than its default, and `key=any` is a key that the message shows."""
    why: str
    """The reason, and what works. `{}` stands for the result of `also`."""
    also: Callable[[Config], Any] = lambda config: True
    """A further condition: not false, zero or None."""
    verb: str = "does not go with"
    """Between the first key and the others."""

    @functools.cached_property
    def conditions(self) -> list[_Condition]:
        parts = re.findall(r"([\w.]+)(!?=|)(\S*)", self.when)
        return [_Condition(key, sign, values.split("|")) for key, sign, values in parts]

    @property
    def keys(self) -> list[str]:
        return [condition.key for condition in self.conditions]

    def applies(self, config: Config, plain: Mapping[str, Any]) -> Any:
        """The result of `also` where all conditions hold, else False; `plain` is the config as plain data."""
        return all(condition.holds(plain) for condition in self.conditions) and self.also(config)

    def message(self, plains: Sequence[Mapping[str, Any]], result: Any = "") -> str:
        """The sentence for configs to which the rule applies."""
        first, *others = (
            f"{key}={either(dict.fromkeys(as_text(get_key(plain, key)) for plain in plains))}"
            for key in self.keys
        )
        beside = f"{first} {self.verb} {either(others or [''], 'and')}".rstrip()
        return f"{beside}: {self.why.replace('{}', str(result))}"

    def documented(self) -> list[str]:
        """The rule for a reader of the documents: the first value, the others, the reason."""
        first, *others = (condition.documented() for condition in self.conditions)
        return [first, ", ".join(others), self.why.replace("{}", "…")]
