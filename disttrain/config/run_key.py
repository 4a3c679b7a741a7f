"""The run key: a hash of the config values on which the results and the speed of a run depend.

A field that is added later is marked `KEYED_IF_SET`, and enters the key only where it differs from its
default, so that a new version changes no key of a config without it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

from disttrain.config.config_tree import Config, config_fields
from disttrain.config.dotted_keys import ABSENT, get_key, pop_key
from disttrain.config.sections.base import is_excluded_from_key, is_keyed_if_set


def keyed_values(config: Config) -> dict[str, Any]:
    """The config as plain data without the fields that are excluded from the run key."""
    plain = config.as_dict()
    for key in _excluded_keys():
        if key.partition(".")[0] in plain:
            pop_key(plain, key)
    for key, default in _later_keys():
        if get_key(plain, key, ABSENT) == default:
            _pop_with_empty_sections(plain, key)
    return plain


def _pop_with_empty_sections(plain: dict[str, Any], key: str) -> None:
    pop_key(plain, key)
    section, _, _ = key.rpartition(".")
    while section and not get_key(plain, section):
        pop_key(plain, section)
        section, _, _ = section.rpartition(".")


@functools.cache
def _excluded_keys() -> tuple[str, ...]:
    return tuple(key for key, field in config_fields() if is_excluded_from_key(field))


@functools.cache
def _later_keys() -> tuple[tuple[str, Any], ...]:
    """Dotted key and default, as plain data, of each field that is keyed only if it is set."""
    plain = Config().as_dict()
    return tuple((key, get_key(plain, key)) for key, field in config_fields() if is_keyed_if_set(field))


def config_key(config: Config, repeat: int = 0) -> str:
    """`hash_values` of the keyed values: equal for runs that compute the same."""
    return hash_values(keyed_values(config), repeat)


def hash_values(values: dict[str, Any], repeat: int = 0) -> str:
    """SHA-256 over plain data and the repeat: 12 hex digits."""
    text = json.dumps([values, repeat], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
