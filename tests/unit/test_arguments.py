"""Help of the verbs: each has an example, which the parser accepts."""

from __future__ import annotations

import shlex

import pytest

import submit
from jobs.cli.arguments import EXAMPLES, verb_of
from tests.support.verbs import verbs

VERBS = dict(verbs())


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_ends_with_an_example(verb: str) -> None:
    examples = VERBS[verb].format_help().split("\nexample")[1]
    assert f"  python submit.py {verb}" in examples
    assert max(map(len, examples.splitlines())) <= 110


@pytest.mark.parametrize("verb", EXAMPLES)
def test_an_example_is_a_valid_command_line(verb: str | None) -> None:
    for line in EXAMPLES[verb]:
        given = submit._parse(shlex.split(line))
        assert given is not None
        assert verb is None or str(verb_of(given.parser)).startswith(verb)


def test_only_verbs_have_examples() -> None:
    assert {*EXAMPLES} == {None, "cluster", *VERBS}
