"""Config keys that were renamed or removed: refused in new configs, translated in old records.

A config file or a flag with such a key is refused in one line that names the new key (`refusal`). A
`run.json` or `sweep.json` written before the rename is still read (`translate`). Standard library only.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from disttrain.config.dotted_keys import ABSENT, get_key, pop_key, set_default

RENAMED: dict[str, str] = {
    "parallel.bucket_mb": "parallel.ddp.bucket_mb",
    "parallel.find_unused_parameters": "parallel.ddp.find_unused_parameters",
    "parallel.gradient_as_bucket_view": "parallel.ddp.gradient_as_bucket_view",
    "parallel.static_graph": "parallel.ddp.static_graph",
    "telemetry.samples": "telemetry.profiled_steps",
}
"""Old dotted key to new dotted key."""


REMOVED: dict[str, str] = {
    "telemetry.calibrations": "benchmarks/exposed.py compares the methods that measure exposed communication",
}
"""Dotted key that is gone, and the reason as a main clause."""


def refusal(key: str) -> str | None:
    """One line that refuses the dotted `key` and names its new name; None for any other key."""
    if key in RENAMED:
        return f"'{key}' was renamed: use '{RENAMED[key]}'"
    if key in REMOVED:
        return f"'{key}' was removed: {REMOVED[key]}"
    return None


def renamed_in(config: Mapping[str, Any]) -> list[str]:
    """Dotted keys of a nested config that were renamed or removed."""
    return [key for key in (*RENAMED, *REMOVED) if get_key(config, key, ABSENT) is not ABSENT]


def translate(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded nested config under today's keys: renamed keys moved, removed keys dropped.

    A value under a new key wins over one under its old key. Returns a copy, which shares its sections with
    `config` where no key changes; `config` stays as it is.
    """
    changed = renamed_in(config)
    if not changed:
        return dict(config)  # a deep copy takes longer than reading the file
    translated = copy.deepcopy(dict(config))
    for key in changed:
        value = pop_key(translated, key)
        if key in RENAMED:
            set_default(translated, RENAMED[key], value)
    return translated


def translate_run(record: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a `run.json` with today's keys in its `config` and its `axes` (flat, dotted keys)."""
    translated = dict(record)
    if isinstance(record.get("config"), Mapping):
        translated["config"] = translate(record["config"])
    if isinstance(record.get("axes"), Mapping):
        axes = record["axes"]
        translated["axes"] = {
            RENAMED.get(key, key): value for key, value in axes.items() if key not in REMOVED
        }
    return translated
