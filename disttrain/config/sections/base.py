"""The base of every section, and the marks by which a field enters the run key or not."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict
from pydantic.fields import FieldInfo

from disttrain.config.numbers_only import NumbersOnly

NOT_IN_KEY: dict[str, Any] = {"not_in_key": True}
"""Marks a field that changes how a run is carried out or observed, but neither its results nor its speed: it
is excluded from the run key."""
KEYED_IF_SET: dict[str, Any] = {"keyed_if_set": True}
"""Marks a field that was added after runs had keys: at its default it is excluded from the run key, so that
the key of a config without it stays the same."""


class Section(NumbersOnly):
    """Base of every section: immutable; refuses unknown keys; the docstring under a field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section that a field holds; None for a plain value."""
    held = field.annotation
    return held if isinstance(held, type) and issubclass(held, Section) else None


def is_excluded_from_key(field: FieldInfo) -> bool:
    """Whether the field is marked `NOT_IN_KEY`."""
    return _has_mark(field, "not_in_key")


def is_keyed_if_set(field: FieldInfo) -> bool:
    """Whether the field is marked `KEYED_IF_SET`."""
    return _has_mark(field, "keyed_if_set")


def _has_mark(field: FieldInfo, name: str) -> bool:
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get(name))
