"""Progress bars: after two seconds, on a terminal only, and on stderr."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import submit
from jobs.cli import progress_bar
from tests.support.terminal import Terminal

PROGRAM = f"""\
import sys
sys.path.insert(0, {str(Path(submit.__file__).parent)!r})
from jobs.cli import progress_bar
progress_bar.SHOWN_AFTER_S = float(sys.argv[1])
for item in progress_bar.progress(range(3), "reading runs"):
    if item == 1 and sys.argv[2] == "wait":
        sys.stdin.readline()
print("over")
"""


def command(shown_after_s: float, then: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(shown_after_s), then]


def test_a_bar_appears_when_the_time_has_passed_and_vanishes() -> None:
    shown = Terminal(command(0, "wait"))
    try:
        drawn = shown.wait_for("reading runs")
        drawn += shown.wait_for("1/3")
        shown.type("\n")
        rest = shown.read_all()
    finally:
        shown.close()
    assert rest.endswith("over\r\n")
    assert "\x1b[2K" in rest, "the line of the bar is erased"


@pytest.mark.parametrize(("shown_after_s", "term"), [(600, "xterm"), (0, "dumb")])
def test_no_bar_appears_before_and_where_nothing_can_be_redrawn(shown_after_s: float, term: str) -> None:
    shown = Terminal(command(shown_after_s, "go on"), TERM=term)
    try:
        assert shown.read_all() == "over\r\n"
    finally:
        shown.close()


def test_without_a_terminal_nothing_is_printed() -> None:
    done = subprocess.run(command(0, "go on"), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("over\n", "")


def test_the_items_pass_through_and_an_error_ends_the_bar() -> None:
    assert list(progress_bar.progress(iter("abc"), "letters")) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="no"), progress_bar.progress_bar("x"):
        raise ValueError("no")
