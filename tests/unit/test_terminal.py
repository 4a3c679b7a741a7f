"""Colours: on a terminal, or under FORCE_COLOR, and never under NO_COLOR."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import submit
from jobs.cli.terminal import has_colour
from tests.support.states import make_run
from tests.support.terminal import Terminal

COLOUR = re.compile(r"\x1b\[[\d;]*(?:3[0-7]|38;[\d;]+|9[0-7])m")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for state in ("done", "failed", "cancelled", "planned"):
        make_run(tmp_path, f"tiny/{state}", state)
    return tmp_path


def drawn(runs: Path, verb: str, **variables: str) -> str:
    """The text that a verb draws on a terminal."""
    command = [sys.executable, submit.__file__, verb, "tiny", "--runs", str(runs)]
    terminal = Terminal(command, **variables)
    try:
        return terminal.read_all()
    finally:
        terminal.close()


def test_status_colours_states_on_a_terminal(runs: Path) -> None:
    lines = drawn(runs, "status").splitlines()
    colours = {line.split()[0].split("m")[-1]: line[:5] for line in lines if line.startswith("\x1b")}
    assert colours == {"done": "\x1b[32m", "failed": "\x1b[31m", "cancelled": "\x1b[33m"}


@pytest.mark.parametrize("verb", ["status", "watch"])
def test_no_colour_where_it_is_not_wanted(runs: Path, verb: str) -> None:
    assert COLOUR.search(drawn(runs, verb))
    assert "failed" in (plain := drawn(runs, verb, NO_COLOR="1"))
    assert not COLOUR.search(plain)
    assert COLOUR.search(drawn(runs, verb, NO_COLOR="")), "an empty value does not count"
    dumb = drawn(runs, verb, TERM="dumb")
    assert "failed" in dumb
    assert "\x1b" not in dumb


@pytest.mark.parametrize("verb", ["status", "watch"])
def test_a_pipe_has_no_control_sequences(runs: Path, verb: str) -> None:
    command = [sys.executable, submit.__file__, verb, "tiny", "--runs", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "failed" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_a_pipe_has_colours_under_force_color_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def coloured(**variables: str) -> bool:
        for name in ("FORCE_COLOR", "NO_COLOR"):
            monkeypatch.setenv(name, variables.get(name, ""))
        return has_colour(io.StringIO())

    assert not coloured()
    assert coloured(FORCE_COLOR="1")
    assert coloured(FORCE_COLOR="0"), "the value does not count"
    assert not coloured(FORCE_COLOR="1", NO_COLOR="1")
