"""The `sweep` section of a sweep file: axes, grids, exclusions, scaling and repeats."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, ValidationError

from disttrain.config.parsing import Draft, known_keys
from disttrain.config.sections.base import Section
from disttrain.errors import ConfigError, nearest

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
    """Launches of every combination: confidence intervals are computed over launches."""


def read_section(draft: Draft) -> SweepSection:
    """Check the `sweep` section of a draft. Raises `ConfigError`, one line, with file and line."""
    try:
        return SweepSection.model_validate(draft.data.get("sweep") or {})
    except ValidationError as error:
        detail = error.errors()[0]
    parts = [str(part) for part in detail["loc"]]
    key = ".".join(["sweep", *parts])
    kind, value, message = detail["type"], detail["input"], detail["msg"]
    if kind == "extra_forbidden":
        allowed = [f"sweep.{name}" for name in SweepSection.model_fields]
        text = f"unknown key '{key}'{nearest(key, allowed)}; allowed: {', '.join(allowed)}"
    elif kind == "too_short" and parts[0] != "exclude":
        text = f"{key}={value!r}: an axis needs at least one value"
    elif kind == "list_type" and parts[0] != "exclude":
        text = f"{key}={value!r}: an axis is a list of values, as in [{value}]"
    elif kind in ("dict_type", "model_type"):
        text = f"{key}={value!r} must be a mapping"
    else:
        text = f"{key}={value!r}: {message[:1].lower()}{message[1:]}"
    raise ConfigError(text, at=draft.at(key))


def check_exclude_keys(section: SweepSection, axes: set[str], draft: Draft) -> None:
    """Raise `ConfigError` for a key in `exclude` that no run has: a misspelt key would exclude nothing."""
    allowed = sorted(axes | set(known_keys()))
    for entry in section.exclude:
        for key in entry:
            if key not in allowed and draft.get(key) is None:
                message = f"unknown key '{key}' in sweep.exclude{nearest(key, allowed)}"
                raise ConfigError(message, at=draft.at("sweep.exclude"))
