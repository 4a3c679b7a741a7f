"""Integers in values of variables."""

from __future__ import annotations

import pytest

from jobs.fabric.integers import integer_prefix, is_nonzero


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("22", (22, "")), (" \t22 \r", (22, " \r")), ("-1", (-1, "")), ("+7x", (7, "x")), ("0x1F", (31, "")),
        ("010", (8, "")), ("08", (0, "8")), ("0xg", (0, "xg")), ("41 # x", (41, " # x")),
        ("", None), ("false", None), ("- 1", None), ("\u0661", None),
    ],
)  # fmt: skip
def test_a_number_at_the_start_is_read_as_in_c(text: str, found: tuple[int, str] | None) -> None:
    assert integer_prefix(text) == found


def test_a_switch_is_on_at_any_number_but_0() -> None:
    assert [is_nonzero(text) for text in ("1", "-1", "2 ", "0", "0\r", "00", "true", "", None)] == [
        True, True, True, *[False] * 6,
    ]  # fmt: skip
    assert [is_nonzero(text, default=True) for text in ("", None, "0", "no")] == [True, True, False, False]
