"""The base of every section, and the marks by which a field enters the run key or not."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

T = TypeVar("T")
NOT_IN_KEY, KEYED_IF_SET = "not_in_key", "keyed_if_set"
NotInKey = Annotated[T, Field(json_schema_extra={NOT_IN_KEY: True})]
"""A field that changes how a run is carried out or observed, but neither its results nor its speed: it is
excluded from the run key."""
KeyedIfSet = Annotated[T, Field(json_schema_extra={KEYED_IF_SET: True})]
"""A field that was added after runs had keys: at its default it is excluded from the run key, so that the key
of a config without it stays the same."""

WITHOUT_VALUE = "without_value"
"""Type of a pydantic error whose message must not show the value."""


class Section(BaseModel):
    """Base of every section: immutable; refuses unknown keys; the docstring under a field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section that a field holds; None for a plain value."""
    held = field.annotation
    return held if isinstance(held, type) and issubclass(held, Section) else None


def is_excluded_from_key(field: FieldInfo) -> bool:
    """Whether the field is marked `NotInKey`."""
    return has_mark(field, NOT_IN_KEY)


def has_mark(field: FieldInfo, mark: str) -> bool:
    """Whether the field has the mark `NOT_IN_KEY` or `KEYED_IF_SET`."""
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get(mark))
