"""Messages for values of a wrong type or range, in the words of YAML in place of pydantic's."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import ErrorDetails

from disttrain.errors import nearest

_MESSAGES = {
    "tuple_type": "a list is needed, in brackets",
    "list_type": "a list is needed, in brackets",
    "dict_type": "a mapping of names to values is needed",
    "string_type": "a text is needed",
    "bool_type": "allowed: true or false",
    "bool_parsing": "allowed: true or false",
    "string_pattern_mismatch": "needed is the form package.module:callable",
}
"""Messages by pydantic's type of an error."""


def describe(errors: Sequence[ErrorDetails]) -> tuple[str, str]:
    """Dotted key of the first error, and a message that begins with key and value."""
    first = errors[0]
    path = [part for part in first["loc"] if not _is_of_union(part)]
    if first["type"] == "missing" and isinstance(path[-1], int):  # of a list of fixed length
        path = path[:-1]
        missing = [each for each in errors if each["loc"][:-1] == first["loc"][:-1]]
        return _named(path, first, f"{len(first['input']) + len(missing)} values are needed")
    if first["type"] == "too_long":
        return _named(path, first, f"at most {first['ctx']['max_length']} values are allowed")
    if _is_of_union(first["loc"][-1]):
        kinds = [each for each in errors if each["loc"][:-1] == first["loc"][:-1]]
        words = [each["ctx"]["expected"] for each in kinds if each["type"] == "literal_error"]
        return _named(path, first, " or ".join([_problem(first), *words]))
    return _named(path, first, _problem(first))


def _named(path: Sequence[str | int], error: ErrorDetails, problem: str) -> tuple[str, str]:
    key = ".".join(map(str, path))
    return key, f"{key}={error['input']!r}: {problem}"


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
