"""Integers in values of variables, as NCCL and libfabric read them: by `strtoll` with base 0."""

from __future__ import annotations

import re

_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))")


def integer_prefix(text: str) -> tuple[int, str] | None:
    """The number at the start of a text, after blanks, and the rest that `strtoll` ignores; None without one.

    As in C, a leading 0x means hexadecimal, and a leading 0 octal.
    """
    found = _INTEGER.match(text)
    if found is None:
        return None
    sign, hexadecimal, octal, decimal = found.groups()
    digits, base = next((each, base) for each, base in ((hexadecimal, 16), (octal, 8), (decimal, 10)) if each)
    return int(sign + digits, base), text[found.end() :]


def is_nonzero(value: str | None, *, default: bool = False) -> bool:
    """Whether a variable that is a switch is on. An unset or empty one has its default; text without a number
    is 0."""
    if not value:
        return default
    number = integer_prefix(value)
    return number is not None and number[0] != 0
