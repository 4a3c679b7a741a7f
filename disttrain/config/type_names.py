"""Type annotations of the config as text for a reader: `int > 0`, `float or null`."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin


def type_name(annotation: Any) -> str:
    """A type annotation as text for a reader of the reference."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [text for item in arguments[1:] if (text := _bound(item))]
        return " ".join([type_name(arguments[0]), *bounds])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(type_name(item) for item in arguments)
    if origin in (list, tuple):
        return "list of " + type_name(arguments[0])
    if annotation is NoneType:
        return "null"
    plain: str = getattr(annotation, "__name__", str(annotation))
    return {"Any": "any", "str": "text", "dict": "mapping"}.get(plain, plain)


def _bound(item: Any) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    return ", ".join(
        f"{sign} {value}" for name, sign in signs.items() if (value := getattr(item, name, None)) is not None
    )
