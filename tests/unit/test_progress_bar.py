"""Progress bars: after two seconds, on a terminal only, and on stderr."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import submit
from analysis.report import Written
from disttrain.records.json_files import write_json
from jobs.cli import progress_bar
from jobs.status.run_folders import annotate
from tests.support.states import make_run
from tests.support.terminal import Terminal
from tests.support.verbs import RUNS

ROOT = str(Path(submit.__file__).parent)
PROGRAM = f"""\
import sys, time
sys.path.insert(0, {ROOT!r})
from disttrain.records.json_files import write_json
from jobs.cli import progress_bar
from tests.support.states import make_run
progress_bar.SHOWN_AFTER_S = float(sys.argv[1])
for item in progress_bar.progress(range(3), "reading runs"):
    if item == 1 and sys.argv[2] == "wait":
        sys.stdin.readline()
print("over")
"""


@contextmanager
def terminal(*arguments: str, **variables: str) -> Iterator[Terminal]:
    made = Terminal([sys.executable, "-c", PROGRAM, *arguments], **variables)
    try:
        yield made
    finally:
        made.close()


def test_a_bar_appears_when_the_time_has_passed_and_vanishes() -> None:
    with terminal("0", "wait") as shown:
        drawn = shown.wait_for("reading runs")
        drawn += shown.wait_for("1/3")
        shown.type("\n")
        rest = shown.read_all()
        assert rest.endswith("over\r\n")
        assert "\x1b[2K" in rest, "the line of the bar is erased"


def test_no_bar_appears_before() -> None:
    with terminal("600", "go on") as shown:
        assert shown.read_all() == "over\r\n"


def test_a_terminal_that_cannot_redraw_has_no_bar() -> None:
    with terminal("0", "wait", TERM="dumb") as shown:
        shown.type("\n")
        assert "reading runs" not in shown.read_all()


def test_without_a_terminal_nothing_is_printed() -> None:
    command = [sys.executable, "-c", PROGRAM, "0", "go on"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("over\n", "")


def test_the_items_pass_through_and_an_error_ends_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "can_redraw", lambda stream: True)
    assert list(progress_bar.progress(iter("abc"), "letters")) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="no"), progress_bar.progress_bar("x"):
        raise ValueError("no")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("command", "texts"),
    [
        ("status", ["reading runs"]),
        ("report", ["writing the report"]),
        ("report --tag good", ["reading runs", "writing the report"]),
        ("cancel tiny", ["reading runs"]),
        ("clean tiny", ["reading runs"]),
        ("resume tiny --dry-run", ["reading runs"]),
        (
            "sweep tiny.yaml --nodes 1 2",
            ["reading runs", "checking combinations", "copying the code", "submitting runs"],
        ),
    ],
)
def test_long_steps_of_the_verbs_have_a_bar(
    monkeypatch: pytest.MonkeyPatch, command: str, texts: list[str]
) -> None:
    import analysis.report

    def write(sweeps: list[Path], out: Path, **_: object) -> Written:
        write_json(out / "report.json", {"title": "t"})
        return Written(out / "report.html", [])

    monkeypatch.setattr(analysis.report, "write", write)
    shown: list[str] = []

    @contextmanager
    def bar(text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        shown.append(text)
        yield lambda done: None

    monkeypatch.setattr(progress_bar, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(progress_bar, "progress_bar", bar)
    annotate(make_run(RUNS, "tiny/n1").path, add=["good"])
    assert submit.main(command.split()) == 0
    assert list(dict.fromkeys(shown)) == texts
