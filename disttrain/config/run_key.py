"""The run key: a hash of the config values on which the results and the speed of a run depend.

A field that is added later is `KeyedIfSet`, and enters the key only where it differs from its default, so
that a new version changes no key of a config without it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

from disttrain.config.config_tree import Config, config_fields
from disttrain.config.dotted_keys import ABSENT, get_key, pop_key
from disttrain.config.sections.base import KEYED_IF_SET, has_mark, is_excluded_from_key


def keyed_values(config: Config) -> dict[str, Any]:
    """The config as plain data without the fields that are excluded from the run key."""
    plain = config.as_dict()
    excluded, later = _marked()
    for key in excluded:
        if get_key(plain, key, ABSENT) is not ABSENT:
            pop_key(plain, key)
    for key, default in later.items():
        if get_key(plain, key, ABSENT) == default:
            pop_key(plain, key)
            while (key := key.rpartition(".")[0]) and not get_key(plain, key):  # no section of such fields
                pop_key(plain, key)
    return plain


@functools.cache
def _marked() -> tuple[list[str], dict[str, Any]]:
    """Dotted keys of the fields that are excluded from the key; those that are keyed if they are set, with
    their defaults as plain data."""
    plain, fields = Config().as_dict(), list(config_fields())
    later = {key: get_key(plain, key) for key, field in fields if has_mark(field, KEYED_IF_SET)}
    return [key for key, field in fields if is_excluded_from_key(field)], later


def config_key(config: Config, repeat: int = 0) -> str:
    """`hash_values` of the keyed values: equal for runs that compute the same."""
    return hash_values(keyed_values(config), repeat)


def hash_values(values: dict[str, Any], repeat: int = 0) -> str:
    """SHA-256 over plain data and the repeat: 12 hex digits."""
    text = json.dumps([values, repeat], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
