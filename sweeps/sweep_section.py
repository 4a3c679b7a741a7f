"""The `sweep` section of a sweep file: axes, grids, exclusions, scaling and repeats."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, ValidationError
from pydantic_core import ErrorDetails

from disttrain.config.parsing import Draft, known_keys
from disttrain.config.sections.base import Section
from disttrain.config.validation import describe, validated
from disttrain.errors import ConfigError, nearest
from disttrain.records.planned import AutoRepeats

FIRST_REPEATS, MOST_REPEATS = 3, 100
"""Repeats of a point before its interval decides: two have an interval of 13 standard errors."""
Values = Annotated[list[Any], Field(min_length=1)]


class SweepSection(Section):
    """The `sweep` section. All other sections form the base config that the runs share."""

    axes: dict[str, Values] = Field(default_factory=dict)
    """Values by config key; the sweep is the product of all axes."""
    grids: dict[str, dict[str, Values]] = Field(default_factory=dict)
    """Named sets of further axes; the sweep is the union of their products, each with `axes`."""
    exclude: list[Annotated[dict[str, Any], Field(min_length=1)]] = Field(default_factory=list)
    """Excluded combinations: a run is left out when it has all the values of one entry."""
    scaling: Literal["weak", "strong"] = "weak"
    """`weak` holds the local batch size while ranks grow, `strong` the global one."""
    repeats: PositiveInt = 1
    """Launches of every combination: confidence intervals are computed over launches. `auto:2%` adds launches
    until the interval of each throughput is within +-2 %, up to 10 launches; `auto:2%:6` up to 6."""


def read_section(draft: Draft) -> SweepSection:
    """Check the `sweep` section of a draft. Raises `ConfigError`, a line for each mistake."""
    try:
        return validated(SweepSection, draft.data.get("sweep") or {})
    except ValidationError as error:
        messages = dict.fromkeys(map(_mistake, error.errors()))
    raise draft.error(*messages)


def _mistake(detail: ErrorDetails) -> str:
    """The message on an error of pydantic in the `sweep` section."""
    parts = [str(part) for part in detail["loc"]]
    key = ".".join(["sweep", *parts])
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        allowed = [f"sweep.{name}" for name in SweepSection.model_fields]
        return f"unknown key '{key}'{nearest(key, allowed)}; allowed: {', '.join(allowed)}"
    if kind == "too_short" and parts[0] != "exclude":
        return f"{key}={value!r}: an axis needs at least one value"
    if kind == "list_type" and parts[0] != "exclude":
        return f"{key}={value!r}: an axis is a list of values, as in [{value}]"
    if kind in ("dict_type", "model_type"):
        return f"{key}={value!r} must be a mapping"
    return f"sweep.{describe([detail])[0][1]}"


def take_auto_repeats(draft: Draft) -> AutoRepeats | None:
    """The rule of `sweep.repeats: auto:2%`, which leaves its limit in the draft; None for a number.

    Raises `ConfigError`.
    """
    value = draft.get("sweep.repeats") if isinstance(draft.data.get("sweep"), dict) else None
    if not isinstance(value, str) or not value.startswith("auto"):
        return None
    origin, parts = draft.at("sweep.repeats"), re.fullmatch(r"auto:(\d*\.?\d+)%(?::(\d{1,4}))?", value)
    within, most = (float(parts[1]) / 100, int(parts[2] or 10)) if parts else (0.0, 0)
    if not 0 < within < 1 or not FIRST_REPEATS <= most <= MOST_REPEATS:
        limits = f"P above 0 and below 100 and N from {FIRST_REPEATS} to {MOST_REPEATS}"
        allowed = f"auto:P% or auto:P%:N, with {limits}"
        raise ConfigError(f"sweep.repeats={value!r}: allowed: a number, {allowed}", at=origin)
    draft.set("sweep.repeats", most, origin or "sweep")
    return AutoRepeats(within=within, most=most)


def check_exclude_keys(section: SweepSection, axes: set[str], draft: Draft) -> None:
    """Raise `ConfigError` for a key in `exclude` that no run has: a misspelt key would exclude nothing."""
    allowed = sorted(axes | set(known_keys()))
    for entry in section.exclude:
        for key in entry:
            if key not in allowed and draft.get(key) is None:
                message = f"unknown key '{key}' in sweep.exclude{nearest(key, allowed)}"
                raise ConfigError(message, at=draft.at("sweep.exclude"))
