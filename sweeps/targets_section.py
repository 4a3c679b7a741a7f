"""The `targets` section of a sweep file: figures that the runs of the sweep have to reach.

    targets:
      efficiency: 0.85             # at least
      communication_share: 0.15    # at most
      at: 16 gpus                  # or `2 nodes`, `2x8`; default: the largest

A list of such mappings sets targets at several sizes.
"""

from __future__ import annotations

from typing import Any, get_args

from disttrain.config.parsing import Draft
from disttrain.errors import ConfigError, nearest
from disttrain.records.planned import SHARES, Target, TargetMetric, parse_size

_METRICS: tuple[TargetMetric, ...] = get_args(TargetMetric)


def read_targets(draft: Draft) -> tuple[Target, ...] | None:
    """The targets of a draft; None without the section. Raises `ConfigError`, one line."""
    if "targets" not in draft.data:
        return None
    given = draft.data["targets"]
    if not isinstance(given, list):
        return () if given is None else tuple(_targets("targets", given, draft))
    entries = [_targets(f"targets.{index}", entry, draft) for index, entry in enumerate(given)]
    return tuple(target for entry in entries for target in entry)


def _targets(name: str, entry: Any, draft: Draft) -> list[Target]:
    allowed = [*_METRICS, "at"]
    if not isinstance(entry, dict):
        raise _refused(name, entry, f"must be a mapping; keys: {', '.join(allowed)}", draft)
    for key in entry:
        if key not in allowed:
            text = f"unknown key '{name}.{key}'{nearest(str(key), allowed)}; allowed: {', '.join(allowed)}"
            raise ConfigError(text, at=draft.at(f"{name}.{key}"))
    at = entry.get("at")
    if at is not None and (isinstance(at, bool) or parse_size(at) is None):
        raise _refused(f"{name}.at", at, "must be a size: 16 gpus, 2 nodes or 2x8", draft)
    if not set(_METRICS) & set(entry):
        raise _refused(name, entry, f"sets no target; allowed: {', '.join(_METRICS)}", draft)
    return [
        Target(metric=metric, value=_value(f"{name}.{metric}", metric, entry[metric], draft), at=at)
        for metric in _METRICS
        if metric in entry
    ]


def _value(key: str, metric: TargetMetric, value: Any, draft: Draft) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if metric in SHARES and not (is_number and 0 < value <= 1):
        raise _refused(key, value, "must be a share, more than 0 and at most 1", draft)
    if not (is_number and 0 < value < float("inf")):
        raise _refused(key, value, "must be a number above 0, in samples/s", draft)
    return float(value)


def _refused(key: str, value: Any, why: str, draft: Draft) -> ConfigError:
    return ConfigError(f"{key}={value!r} {why}", at=draft.at(key))
