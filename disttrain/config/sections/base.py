"""The base of every section, and the mark of fields that are excluded from the run key."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

T = TypeVar("T")
_NOT_IN_KEY = {"not_in_key": True}
NotInKey = Annotated[T, Field(json_schema_extra=_NOT_IN_KEY)]
"""A field that changes how a run is carried out or observed, but neither its results nor its speed: it is
excluded from the run key."""
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
    return field.json_schema_extra == _NOT_IN_KEY
