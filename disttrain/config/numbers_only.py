"""Refusal of true and false where a number is needed.

For Python, and so for pydantic, `true` is the number 1: `resources.nodes: true` would be one node.
"""

from __future__ import annotations

import functools
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from disttrain.config.type_names import type_name


class NumbersOnly(BaseModel):
    """Base of models read from YAML: a field for numbers takes neither true nor false, at no depth."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        if _has_boolean(value) and (allowed := _allowed(cls, str(info.field_name), isinstance(value, bool))):
            raise PydanticCustomError(
                "boolean_for_number", "allowed: {allowed}, not true or false", {"allowed": allowed}
            )
        return value


def _has_boolean(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_boolean, value))
    return isinstance(value, bool)


@functools.cache
def _allowed(model: type[BaseModel], name: str, single: bool) -> str | None:
    """The type of a field as text if it takes numbers and no boolean; else None.

    `single`: of the members of a union, those that are no list.
    """
    field = model.model_fields[name]
    members = _members(field.annotation, single)
    takes_boolean = any(each is bool or each is Any or isinstance(each, bool) for each in members)
    takes_number = any(each in (int, float) for each in members)
    if takes_boolean or not takes_number:
        return None
    return type_name(field.rebuild_annotation()).replace("`", "'")


def _members(annotation: Any, single: bool) -> list[Any]:
    """The plain types and literal values of an annotation."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _members(arguments[0], single)
    if origin is None or origin is Literal:
        return list(arguments) or [annotation]
    if single and origin not in (Union, UnionType):
        return []
    return [member for each in arguments if each is not Ellipsis for member in _members(each, single)]
