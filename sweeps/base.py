"""The base of a sweep: the config all its runs share, and whether two commands mean the same one."""

from __future__ import annotations

import contextlib
from typing import Any

from pydantic import ValidationError

from disttrain.config.builder_options import BUILT_SECTIONS, check_options
from disttrain.config.parsing import Draft, check
from disttrain.config.sections import Config, is_noise
from disttrain.errors import ConfigError

_SHAPE = ("nodes", "gpus_per_node")
"""Keys of `resources` that any command may vary, so they are no part of the base."""
_ABSENT = object()


def base_of(draft: Draft, *, scaling: str, base_ranks: int | None) -> dict[str, Any]:
    """What `sweep.json` records: the config before axes are laid over it, less its shape.

    Defaults are filled in, so that writing one out is no difference. The base alone may lack what every
    run gets from an axis, so combinations are not checked here.

    Parameters
    ----------
    scaling : which batch size is held while ranks grow
    base_ranks : the number of ranks that the base's batch sizes are given for; None for each run's own
    """
    data = {name: value or {} for name, value in draft.data.items() if name != "sweep"}
    try:
        plain = Config.model_validate(data).as_dict()
    except ValidationError:
        check(draft)  # says it in one line
        raise
    for section, package in BUILT_SECTIONS.items():
        declared = set(type(getattr(Config(), section)).model_fields)
        given = {name: value for name, value in plain[section].items() if name not in declared}
        with contextlib.suppress(ConfigError):  # an axis may be what makes these options fit
            plain[section] |= check_options(package, section, plain[section]["kind"], given)
    for name in _SHAPE:
        del plain["resources"][name]
    return {**plain, "sweep": {"scaling": scaling, "base_ranks": base_ranks}}


def first_difference(recorded: dict[str, Any], now: dict[str, Any]) -> str | None:
    """`<key> is <old> there and <new> here` for the first key in which two bases differ, or None.

    Noise does not count: a longer time limit still extends a sweep. Neither does `base_ranks`, which the
    first `sweep` fixes and later ones take over.
    """
    before, after = _flat(recorded), _flat(now)
    passed_over = {"sweep.base_ranks"} | {
        f"{section}.{name}"
        for section, info in Config.model_fields.items()
        for name, field in info.annotation.model_fields.items()  # type: ignore[union-attr]
        if is_noise(field)
    }
    for key in [*after, *(key for key in before if key not in after)]:
        old, new = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if old != new and key not in passed_over:
            return f"{key} is {_text(old)} there and {_text(new)} here"
    return None


def _flat(base: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{section}.{name}": list(value) if isinstance(value, tuple) else value
        for section, fields in base.items()
        for name, value in fields.items()
    }


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    return "null" if value is None else str(value)
