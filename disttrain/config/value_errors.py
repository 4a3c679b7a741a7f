"""Messages for values of a wrong type or range, in the words of YAML in place of pydantic's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from disttrain.config.dotted_keys import flat_values
from disttrain.config.sections.base import WITHOUT_VALUE
from disttrain.errors import as_text, nearest

M = TypeVar("M", bound=BaseModel)
_MESSAGES = {
    "int_type": "a whole number is needed",
    "float_type": "a number is needed",
    "tuple_type": "a list is needed, in brackets",
    "list_type": "a list is needed, in brackets",
    "dict_type": "a mapping of names to values is needed",
    "string_type": "a text is needed",
    "bool_type": "allowed: true or false",
    "bool_parsing": "allowed: true or false",
    "model_type": "a section with keys of its own is needed",
    "string_pattern_mismatch": "needed is the form package.module:callable",
}
"""Messages by pydantic's type of an error."""


def validated(model: type[M], data: Mapping[str, Any]) -> M:
    """`data` as a `model`, by pydantic's strict rules; but where a whole number is needed, a float without a
    fraction (`100.0`, `1.5e3`) is one. Raises `ValidationError`."""
    text = json.dumps(data, default=str)
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        paths = [_path(each) for each in error.errors() if _is_whole(each)]
        if not paths:
            raise
    changed = json.loads(text)
    for *sections, last in paths:
        node = changed
        for part in sections:
            node = node[part]
        node[last] = int(node[last])
    return model.model_validate_json(json.dumps(changed), strict=True)


def _is_whole(error: ErrorDetails) -> bool:
    value = error["input"]
    return error["type"] == "int_type" and isinstance(value, float) and value.is_integer()


def describe(errors: Sequence[ErrorDetails]) -> list[tuple[str, str]]:
    """Dotted key of each value that is wrong, and a message that begins with key and value."""
    if errors and errors[0]["type"] == "json_invalid":
        return _not_text(errors[0])
    by_key: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    for error in errors:
        path = _path(error)
        if error["type"] == "missing" and isinstance(path[-1], int):  # of a list of fixed length
            path = path[:-1]
        by_key.setdefault(path, []).append(error)
    return [(".".join(map(str, path)), _message(path, errors)) for path, errors in by_key.items()]


def _not_text(error: ErrorDetails) -> list[tuple[str, str]]:
    """A message for each key of a config whose JSON is refused, without its values: they may be secret."""
    flat = flat_values(json.loads(error["input"]))
    found = [key for key, value in flat.items() if not _is_unicode([key, value])]
    messages = [(key, f"{ascii(key)[1:-1]} is not valid text: a lone surrogate") for key in found]
    return messages or [("", f"the config cannot be read: {error['msg']}")]


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _path(error: ErrorDetails) -> tuple[str | int, ...]:
    return tuple(part for part in error["loc"] if not _is_of_union(part))


def _message(path: Sequence[str | int], errors: Sequence[ErrorDetails]) -> str:
    first, key = errors[0], ".".join(map(str, path))
    if first["type"] == WITHOUT_VALUE:
        return f"{key} {first['msg']}"
    if first["type"] == "missing" and path != first["loc"]:
        problem = f"{len(first['input']) + len(errors)} values are needed"
    elif first["type"] == "too_long":
        problem = f"at most {first['ctx']['max_length']} values are allowed"
    else:
        words = [each["ctx"]["expected"] for each in errors[1:] if each["type"] == "literal_error"]
        problem = " or ".join([_problem(first), *words])
    value = first["input"]
    return f"{key}={value!r}: {problem}" if isinstance(value, str) else f"{key}={as_text(value)}: {problem}"


def _problem(error: ErrorDetails) -> str:
    if error["type"] == "literal_error":
        expected = str(error["ctx"]["expected"])
        words = expected.replace("'", "").replace(" or ", ", ").split(", ")
        return f"allowed: {expected}{nearest(str(error['input']), words)}"
    message = error["msg"]
    return _MESSAGES.get(error["type"], message[:1].lower() + message[1:])


def _is_of_union(part: str | int) -> bool:
    """Whether a part of an error's location is not a key, but pydantic's name for a member of a union."""
    return isinstance(part, str) and (part.startswith(("literal[", "constrained-", "function-", "bool")))
