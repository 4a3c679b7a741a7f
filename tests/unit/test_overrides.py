"""Assignments of the command line: `--set key=value,value`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.errors import ConfigError
from sweeps.overrides import parse_set


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a", ("a",)), ("a,b", ("a", "b")), ("1,true,null,x", (1, True, None, "x")), ("c=d", ("c=d",)),
        ("[1, 2]", ([1, 2],)), ("[1, 2],[3]", ([1, 2], [3])), ("[[1, 2], [3]]", ([[1, 2], [3]],)),
        ("{a: 1, b: 2},c", ({"a": 1, "b": 2}, "c")),
        ('"a,b",c', ("a,b", "c")), (r'"a\"b,c",d', ('a"b,c', "d")), ("'it''s a,b',c", ("it's a,b", "c")),
        # a quote within a word, or without an end, is a plain character
        ("it's a,b", ("it's a", "b")), ('--x="1,2",c', ('--x="1,2"', "c")), ('5",6"', ('5"', '6"')),
    ],
)  # fmt: skip
def test_commas_outside_of_brackets_and_quotes_separate_the_values_of_an_axis(text, values):
    override = parse_set(f"k={text}")
    assert (override.key, override.values, override.axis) == ("k", values, len(values) > 1)


@given(
    st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8), min_size=1, max_size=3)
)
def test_values_in_json_are_kept_as_they_are(values):
    """`fabric ab --like` and its lines to keep write values of variables so."""
    written = ",".join(json.dumps(value) for value in values)
    assert parse_set(f"job.env.X={written}").values == tuple(values)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("optim.lr", ""), ("=3", ""), ("optim.lr=", "write null"), ("optim.lr=1,,2", "write null"),
        ("optim.lr=1,", "write null"), ("optim.lr=[1", ""), ("optim.lr='a,b", ""),
        ("my.yaml", "a file goes before the options"), ("my.yml", "a file goes before the options"),
    ],
)  # fmt: skip
def test_malformed_assignments_are_refused(text, hint):
    with pytest.raises(ConfigError, match=f"^--set: .*{hint}"):
        parse_set(text)
