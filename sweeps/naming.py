"""Names of runs: readable, unique within the sweep, safe as a folder's name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from disttrain.config.auto_strategy import choose
from disttrain.config.sections import Config

_IN_EVERY_NAME = {
    "resources.nodes",
    "resources.gpus_per_node",
    "parallel.strategy",
    "train.local_batch_size",
}
_LONGEST_VALUE = 40
_LONGEST_NAME = 160  # with room for suffixes below the 255 bytes of a file name


def strategy_of(config: Config) -> str:
    """The strategy a run will use."""
    return choose(config.parallel.strategy, config.world_size)[0]


def readable_name(config: Config, axes: dict[str, Any], repeat: int) -> str:
    """`n2-ddp-b64-r0`: nodes, strategy, local batch, repeat; between them what else is swept."""
    resources = config.resources
    parts = [f"n{resources.nodes}"]
    if resources.gpus_per_node > 1 or "resources.gpus_per_node" in axes:
        parts.append(f"g{resources.gpus_per_node}")
    parts += [strategy_of(config), f"b{config.train.local_batch_size}"]
    for key, value in axes.items():
        if key not in _IN_EVERY_NAME:
            leaf = key.rsplit(".", 1)[-1]
            shown = _safe(_plain(value))[:_LONGEST_VALUE]
            parts.append(shown if leaf == "kind" else _safe(leaf) + shown)  # `mlp` says what it is
    return f"{'-'.join(parts)[:_LONGEST_NAME]}-r{repeat}"


def unique_names(
    wanted: Iterable[tuple[str, str]],
    existing: Mapping[str, str],
    unreadable: Collection[str] = frozenset(),
) -> list[str]:
    """A name for each (readable name, config key).

    A run that exists keeps the name it has (`existing` maps config keys to names); of new ones that would
    share a name, or take one in use, each gets the start of its key as a suffix. A run whose key cannot be
    read any more may be any that would have got its name, so they all get it: none is started beside it.
    """
    pairs = list(wanted)
    taken = Counter(name for name, key in pairs if key not in existing)
    taken.update(existing.values())

    def unique(name: str, key: str) -> str:
        with_key = f"{name}-{key[:6]}"
        found = existing.get(key) or next((each for each in (name, with_key) if each in unreadable), None)
        return found or (name if taken[name] == 1 else with_key)

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
