"""Assignments of the command line: `--set key=value,value`."""

from __future__ import annotations

import pytest

from disttrain.errors import ConfigError
from sweeps.overrides import Override, parse_set, split_values


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("[a, b]", ["[a, b]"]),
        ("[1, 2],[3]", ["[1, 2]", "[3]"]),
        ("{a: 1, b: 2},c", ["{a: 1, b: 2}", "c"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("[[1, 2], [3]]", ["[[1, 2], [3]]"]),
        ("a,", ["a", ""]),
    ],
)
def test_commas_split_only_at_the_top(text: str, parts: list[str]) -> None:
    assert split_values(text) == parts


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
        ("optim.lr=1,", "'optim.lr=1,' has an empty value; write null for none"),
    ],
)
def test_malformed_assignments_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_set(text)
    assert str(raised.value) == f"--set: {message}"
