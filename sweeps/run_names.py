"""Run names: readable, unique within the sweep, valid as folder names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from disttrain.config.config_tree import Config, config_fields
from disttrain.config.sections.base import is_excluded_from_key

_SHAPE = ("resources.nodes", "resources.gpus_per_node")
_KEYS = {"kind": "", "strategy": "", "local_batch_size": "b"}
"""Short forms of the last part of a key: `mlp` and `fsdp` need no key."""
_MAX_VALUE_CHARS = 40
_MAX_NAME_CHARS = 160  # below the 255 bytes of a file name, with space for suffixes


def readable_names(runs: Iterable[tuple[Config, Mapping[str, Any], int]]) -> list[str]:
    """`n2-lr1e-3-r0` for each (config, axes, repeat): nodes, axes, and the repeat if a sweep has several.

    A path, a file name or a command enters by its number among the values of its axis, if there are several.
    Fields that are excluded from the run key do not enter: another time limit makes no other run.
    """
    planned = list(runs)
    excluded = {key for key, field in config_fields() if is_excluded_from_key(field)}
    values: dict[str, list[Any]] = {}
    for _, axes, _ in planned:
        for key, value in axes.items():
            if key not in excluded and key not in _SHAPE and value not in values.setdefault(key, []):
                values[key].append(value)
    short = {key: _short(key, values) for key in values}
    numbered = {key for key in values if key == "command" or any(map(_is_path, values[key]))}
    repeated = any(repeat for _, _, repeat in planned)

    def part(key: str, value: Any) -> str:
        if key not in numbered:
            return short[key] + _safe(_plain(value))[:_MAX_VALUE_CHARS]
        return f"{short[key]}{values[key].index(value)}" if len(values[key]) > 1 else ""

    names = []
    for config, axes, repeat in planned:
        nodes, gpus = config.resources.nodes, config.resources.gpus_per_node
        parts = [f"n{nodes}", f"g{gpus}" if gpus > 1 or _SHAPE[1] in axes else ""]
        parts += [part(key, value) for key, value in axes.items() if key in values]
        names.append("-".join(filter(None, parts))[:_MAX_NAME_CHARS] + (f"-r{repeat}" if repeated else ""))
    return names


def unique_names(
    wanted: Iterable[tuple[str, str]],
    existing: Mapping[str, str],
    unreadable: Collection[str] = frozenset(),
) -> list[str]:
    """One name for each pair (readable name, config key).

    An existing run keeps its name (`existing`: name by config key). New runs whose readable names collide,
    with each other or with an existing run, get the first six digits of their key as a suffix. A new run
    whose name is that of an unreadable run and of no other new run takes that name: it may be the same run,
    and must not be started twice.
    """
    pairs = list(wanted)
    taken = Counter(name for name, key in pairs if key not in existing)
    taken.update(existing.values())

    def unique(name: str, key: str) -> str:
        with_key = f"{name}-{key[:6]}"
        names = [name, with_key] if taken[name] == 1 else [with_key]
        return existing.get(key) or next((each for each in names if each in unreadable), names[0])

    return [unique(name, key) for name, key in pairs]


def _short(key: str, keys: Collection[str]) -> str:
    """The last part of a dotted key, or the whole key where another one ends alike."""
    leaf = key.rpartition(".")[2]
    if leaf in _KEYS:
        return _KEYS[leaf]
    return _safe(leaf if sum(f".{each}".endswith(f".{leaf}") for each in keys) == 1 else key)


def _is_path(value: Any) -> bool:
    """Whether a value, or an item of a list, has a separator of paths or the suffix of a file name."""
    if isinstance(value, list | tuple):
        return any(map(_is_path, value))
    if isinstance(value, dict):
        return any(map(_is_path, value.values()))
    return isinstance(value, str) and re.search(r"[/\\]|^~|\w\.[A-Za-z]\w*$", value) is not None


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "-".join(map(_plain, value))
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        plain, scientific = f"{value:.15g}", re.sub(r"e\+?(-?)0?", r"e\1", f"{value:.0e}")
        return min(plain, scientific, key=len) if float(scientific) == value else plain
    return str(value)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
