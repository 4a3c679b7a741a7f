"""Mistakes in a config and their answers, each in one line that says where, and what instead; see the golden
file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from disttrain.config.options_without_effect import options_without_effect
from disttrain.config.parsing import Draft, check, load, parse_value, with_batch
from disttrain.errors import ConfigError
from tests.support.golden import GOLDEN, golden

FILE = "config-mistakes.txt"
KEPT = re.compile(r"(?:^[|].*\n)+|^(?:>.*|#.*|)\n", re.MULTILINE)
"""A file, a list of `key=value`, a comment or an empty line; all else are answers."""


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


def test_each_mistake_has_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = KEPT.findall((GOLDEN / FILE).read_text())
    golden(FILE, "".join(part + (answer(part) if part[0] in "|>" else "") for part in parts))
