"""Mistakes in a config and their answers, each in one line that says where, and what instead; see the golden
file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.config.parsing import Draft, check, load, parse_value, with_batch
from disttrain.config.refusals import OF_THE_BATCH, REFUSALS
from disttrain.config.rules import NO_EFFECT, Rule
from disttrain.config.without_effect import WARNINGS, options_without_effect
from disttrain.errors import ConfigError
from tests.support.golden import GOLDEN, golden

FILE = "config-mistakes.txt"
KEPT = re.compile(r"(?:^[|].*\n)+|^(?:>.*|#.*|)\n", re.MULTILINE)
"""A file, a list of `key=value`, a comment or an empty line; all else are answers."""


@pytest.fixture
def mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return KEPT.findall((GOLDEN / FILE).read_text())


def draft_of(mistake: str) -> Draft:
    if mistake.startswith("|"):
        Path("my.yaml").write_text(re.sub(r"(?m)^[|] ?", "", mistake))
        return load("my.yaml")
    draft = Draft({"train": {"steps": 4, "local_batch_size": 4}})
    for word in shlex.split(mistake.removeprefix("> ")):
        key, _, value = word.partition("=")
        draft.set(key, parse_value(value, "--set"), "")
    return draft


def answer(mistake: str) -> str:
    try:
        draft = draft_of(mistake)
        config, _ = with_batch(check(draft), draft)
    except ConfigError as error:
        return f"{error}\n"
    lines = options_without_effect([config])
    assert lines, f"no answer to {mistake!r}"
    return "".join(f"warning: {line}\n" for line in lines)


def test_each_mistake_has_its_answer(mistakes: list[str]) -> None:
    golden(FILE, "".join(part + (answer(part) if part[0] in "|>" else "") for part in mistakes))


def test_each_rule_has_a_mistake(mistakes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rules made in a row, one stands for all."""
    seen: list[str] = []
    message = Rule.message
    monkeypatch.setattr(Rule, "message", lambda rule, *rest: seen.append(rule.why) or message(rule, *rest))
    for mistake in mistakes:
        if mistake[0] in "|>":
            answer(mistake)
    assert {rule.why for rule in (*REFUSALS, *OF_THE_BATCH, *WARNINGS)} - set(seen) == set()


def words(sentence: str) -> Iterator[str]:
    return (word for word in ("use ", "give ", "leave ", "it is for a command") if word in sentence)


def test_each_refusal_says_what_works() -> None:
    assert [rule.why for rule in REFUSALS if not any(words(rule.why)) and "{}" not in rule.why] == []
    assert NO_EFFECT in {rule.verb for rule in REFUSALS}
