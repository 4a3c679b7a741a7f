"""Assignments of the command line: `--set key=value,value`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.errors import ConfigError
from sweeps.overrides import Override, parse_set, split_values

PRINTABLE = st.characters(min_codepoint=32, max_codepoint=126)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("[a, b]", ["[a, b]"]),
        ("[1, 2],[3]", ["[1, 2]", "[3]"]),
        ("{a: 1, b: 2},c", ["{a: 1, b: 2}", "c"]),
        ('"a,b",c', ['"a,b"', "c"]),
        (r'"a\"b,c",d', [r'"a\"b,c"', "d"]),
        ("'it''s a,b',c", ["'it''s a,b'", "c"]),
        ("it's a,b", ["it's a", "b"]),
        ('--x="1,2",c', ['--x="1,2"', "c"]),
        ('5",6"', ['5"', '6"']),
        ("'a,b", ["'a", "b"]),
        ("[[1, 2], [3]]", ["[[1, 2], [3]]"]),
        ("a,", ["a", ""]),
    ],
)
def test_commas_split_only_at_the_top(text: str, parts: list[str]) -> None:
    assert split_values(text) == parts


@given(st.lists(st.text(PRINTABLE, max_size=8), min_size=1, max_size=3))
def test_values_in_json_are_kept_as_they_are(values: list[str]) -> None:
    """`fabric ab --like` and its lines to keep write values of variables so."""
    written = ",".join(json.dumps(value) for value in values)
    assert parse_set(f"job.env.X={written}").values == tuple(values)


def test_set_reads_yaml() -> None:
    assert parse_set("a.b=1,true,null,x,[1, 2]").values == (1, True, None, "x", [1, 2])
    assert parse_set("a.b=[1, 2]") == Override("a.b", ([1, 2],), "--set", axis=False)
    assert parse_set("a.b=c=d").values == ("c=d",)


@pytest.mark.parametrize(
    "text", ["optim.lr", "=3", "optim.lr=", "optim.lr=1,,2", "optim.lr=1,", "optim.lr=[1"]
)
def test_malformed_assignments_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set: "):
        parse_set(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optim.lr", "'optim.lr' is not of the form key=value"),
        ("my.yaml", "'my.yaml' is not of the form key=value (a file goes before the options)"),
        ("my.yml", "'my.yml' is not of the form key=value (a file goes before the options)"),
        ("optim.lr=1,", "optim.lr has an empty value; write null for none"),
    ],
)
def test_malformed_assignments_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_set(text)
    assert str(raised.value) == f"--set: {message}"
