"""Mistakes in a config or a sweep file and their answers, each in one line that says where, and what instead;
see the golden file."""

import re
import shlex
from pathlib import Path

import pytest

from disttrain.config.parsing import Draft, check, load, parse_value, with_batch
from disttrain.config.refusals import OF_THE_BATCH, REFUSALS
from disttrain.config.rules import NO_EFFECT
from disttrain.config.without_effect import WARNINGS, options_without_effect
from disttrain.errors import ConfigError
from sweeps.expand import expand
from tests.support.golden import GOLDEN, golden

FILE = "config-mistakes.txt"
KEPT = re.compile(r"(?:^[|].*\n)+|^(?:>.*|#.*|)\n", re.MULTILINE)
"""A file, a list of `key=value`, a comment or an empty line; all else are answers."""


def draft_of(mistake):
    if mistake.startswith("|"):
        Path("my.yaml").write_text(re.sub(r"(?m)^[|] ?", "", mistake))
        return load("my.yaml")
    draft = Draft({"train": {"steps": 4, "local_batch_size": 4}})
    for word in shlex.split(mistake.removeprefix("> ")):
        key, _, value = word.partition("=")
        draft.set(key, parse_value(value, "--set"), "")
    return draft


def answer(mistake):
    try:
        draft = draft_of(mistake)
        if draft.data.keys() & {"sweep", "command"}:
            expand(draft, name="s")
        config, _ = with_batch(check(draft), draft)
    except ConfigError as error:
        return f"{error}\n"
    lines = options_without_effect([config])
    assert lines, f"no answer to {mistake!r}"
    return "".join(f"warning: {line}\n" for line in lines)


def test_each_mistake_has_its_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts = KEPT.findall((GOLDEN / FILE).read_text())
    golden(FILE, "".join(part + (answer(part) if part[0] in "|>" else "") for part in parts))


@pytest.mark.parametrize("why", sorted({rule.why for rule in (*REFUSALS, *OF_THE_BATCH, *WARNINGS)}))
def test_each_rule_has_a_mistake(why):
    """Of rules made in a row, one stands for all."""
    assert re.search(re.escape(why).replace(r"\{\}", ".*"), (GOLDEN / FILE).read_text())


def test_each_refusal_says_what_works():
    remedy = re.compile(r"use |give |leave |it is for a command|\{\}")
    assert [rule.why for rule in REFUSALS if not remedy.search(rule.why)] == []
    assert NO_EFFECT in {rule.verb for rule in REFUSALS}
