"""Run names: readable, unique within the sweep, valid as folder names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from disttrain.config.auto_strategy import planned_strategy
from disttrain.config.config_tree import Config

_IN_EVERY_NAME = {
    "resources.nodes",
    "resources.gpus_per_node",
    "parallel.strategy",
    "train.local_batch_size",
}
_MAX_VALUE_CHARS = 40
_MAX_NAME_CHARS = 160  # below the 255 bytes of a file name, with space for suffixes
_AUTO, _EARLIER_AUTO = "-auto-", "-ddp-"
"""`parallel.strategy: auto` on several ranks in a name, and in the names of earlier versions."""


def readable_name(config: Config, axes: dict[str, Any], repeat: int) -> str:
    """`n2-ddp-b64-r0`: nodes, strategy as far as it is known, local batch size, other axes, repeat; of a
    command without strategy and batch size."""
    resources = config.resources
    parts = [f"n{resources.nodes}"]
    if resources.gpus_per_node > 1 or "resources.gpus_per_node" in axes:
        parts.append(f"g{resources.gpus_per_node}")
    if not config.command:
        parts += [planned_strategy(config), f"b{config.train.local_batch_size}"]
    for key, value in axes.items():
        if key == "command":
            parts.append(re.sub("-+", "-", _safe("-".join(config.command)))[:_MAX_VALUE_CHARS].strip("-"))
        elif key not in _IN_EVERY_NAME:
            leaf = key.rsplit(".", 1)[-1]
            shown = _safe(_plain(value))[:_MAX_VALUE_CHARS]
            parts.append(shown if leaf == "kind" else _safe(leaf) + shown)  # `mlp` needs no key
    return f"{'-'.join(parts)[:_MAX_NAME_CHARS]}-r{repeat}"


def unique_names(
    wanted: Iterable[tuple[str, str]],
    existing: Mapping[str, str],
    unreadable: Collection[str] = frozenset(),
) -> list[str]:
    """One name for each pair (readable name, config key).

    An existing run keeps its name (`existing`: name by config key). New runs whose readable names collide,
    with each other or with an existing run, get the first six digits of their key as a suffix. A new run
    whose name, or name in an earlier version, is that of an unreadable run and of no other new run takes
    that name: it may be the same run, and must not be started twice.
    """
    pairs = list(wanted)
    taken = Counter(name for name, key in pairs if key not in existing)
    taken.update(existing.values())

    def unique(name: str, key: str) -> str:
        with_key = f"{name}-{key[:6]}"
        names = [name, with_key] if taken[name] == 1 else [with_key]
        earlier = (each.replace(_AUTO, _EARLIER_AUTO, 1) for each in names)
        known = [*names, *(each for each in earlier if each not in taken)] if unreadable else []
        found = existing.get(key) or next((each for each in known if each in unreadable), None)
        return found or names[0]

    return [unique(name, key) for name, key in pairs]


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "-".join(_plain(item) for item in value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
