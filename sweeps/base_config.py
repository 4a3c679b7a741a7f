"""The base config that all runs of a sweep share, and the first difference of two base configs."""

from __future__ import annotations

import contextlib
import shlex
from typing import Any

from pydantic_core import PydanticUndefined

from disttrain.config.config_tree import OF_A_COMMAND, Config, config_fields
from disttrain.config.dotted_keys import ABSENT, flat_values
from disttrain.config.options import BUILT_SECTIONS, planned_options
from disttrain.config.parsing import Draft, check_values
from disttrain.config.sections.base import is_excluded_from_key
from disttrain.errors import ConfigError

_SHAPE = ("nodes", "gpus_per_node")
"""Keys of `resources` that each command may vary: the base excludes them."""


def base_config(draft: Draft, *, scaling: str, base_ranks: int | None, has_command: bool) -> dict[str, Any]:
    """The config without axes and shape, as `sweep.json` records it.

    Defaults are filled in, so that a default written out is no difference. Required values may come from
    an axis and be absent here, so combinations of keys are not checked.

    Parameters
    ----------
    scaling : `weak` holds the local batch size while ranks grow, `strong` the global one
    base_ranks : number of ranks that the batch sizes of the base refer to; None: each run's own ranks
    has_command : whether the runs have a `command`, in the base or as an axis
    """
    plain = check_values(draft).as_dict()
    for section in (name for name in BUILT_SECTIONS if name in plain):
        declared = set(type(getattr(Config(), section)).model_fields)
        given = {name: value for name, value in plain[section].items() if name not in declared}
        with contextlib.suppress(ConfigError):  # an axis may supply a required option
            plain[section] |= planned_options(section, plain[section]["kind"], given)
    if has_command:
        plain = {name: values for name, values in plain.items() if name in OF_A_COMMAND}
    for name in _SHAPE:
        del plain["resources"][name]
    return {**plain, "sweep": {"scaling": scaling, "base_ranks": base_ranks}}


def first_difference(recorded: dict[str, Any], now: dict[str, Any]) -> str | None:
    """`<key> was <old> and is now <new>` for the first key in which two base configs differ, or None.

    Fields excluded from the config key are ignored: a sweep can be extended under a longer time limit.
    `base_ranks` is ignored too: the first `sweep` command fixes it for later ones. A key that the config did
    not have when `recorded` was written counts as its default, as it does in the config key.
    """
    before, after = _by_key(recorded), _by_key(now)
    added = {key: value for key, value in _defaults().items() if key in after and key not in before}
    before |= added
    ignored = {"sweep.base_ranks"} | {key for key, field in config_fields() if is_excluded_from_key(field)}
    for key in [*after, *(key for key in before if key not in after)]:
        old, new = before.get(key, ABSENT), after.get(key, ABSENT)
        if old != new and key not in ignored:
            if key == "command" and new is ABSENT:  # `run` gives each run its own
                return f"its command is {shlex.join(old)}"
            return f"{key} was {_shown(old)} and is now {_shown(new)}"
    return None


def _defaults() -> dict[str, Any]:
    """Default of every key that has one."""
    defaults = {key: field.get_default(call_default_factory=True) for key, field in config_fields()}
    return _by_key({key: value for key, value in defaults.items() if value is not PydanticUndefined})


def _by_key(base: dict[str, Any]) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in flat_values(base).items()
    }


def _shown(value: Any) -> str:
    if value is ABSENT:
        return "absent"
    return "null" if value is None else str(value)
