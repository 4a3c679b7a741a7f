"""`--wait` and `watch`: the live table on a terminal, lines elsewhere, Ctrl-C."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

import submit
from disttrain.records.run_directory import RunDir
from jobs.cli import follow
from jobs.core import journal, processes
from jobs.schedulers.local import fifo_queue
from jobs.schedulers.local.scheduler import ticket_label
from jobs.status.run_state import RunState, read_runs
from tests.support.jobs import WITHIN_S
from tests.support.states import make_run
from tests.support.terminal import Terminal

ROOT = str(Path(submit.__file__).parent)
UNHURRIED = (
    f"import sys; sys.path.insert(0, {ROOT!r}); import submit; from jobs.cli import follow; "
    "follow.POLL_INTERVAL_S = 3600; sys.exit(submit.main(sys.argv[1:]))"
)
"""submit.py with a table that nothing but a resize makes it draw again."""


@contextmanager
def watching(root: Path, *program: str) -> Iterator[Terminal]:
    """A window in which `submit.py watch` shows a run at work and one that waits in the queue."""
    make_run(root, "tiny/n1", "running")
    waits = make_run(root, "tiny/n2", "submitting")
    ticket = fifo_queue.take(ticket_label(waits, 0))
    journal.write_receipt(waits, 0, f"{processes.host()}:{ticket}")
    terminal = Terminal([sys.executable, *program, "watch", "--runs", str(root)], columns=120, rows=20)
    try:
        yield terminal
    finally:
        terminal.close()


def test_the_live_table_follows_the_window(tmp_path: Path) -> None:
    with watching(tmp_path, "-c", UNHURRIED) as terminal:
        wide = terminal.wait_for("n2")
        assert "\x1b[?1049h" in wide  # the alternate screen: nothing old can be left behind by a resize
        assert "n1" in wide
        terminal.wait_for("queued")
        terminal.resize(40, 20)
        terminal.wait_for("…")  # cells no longer fit
        terminal.resize(120, 4)
        terminal.wait_for("more")  # lines no longer fit
        assert terminal.process.poll() is None
        make_run(tmp_path, "tiny/n1", "done")
        make_run(tmp_path, "tiny/n2", "done")
        terminal.resize(120, 20)
        terminal.wait_for("\x1b[?1049l")
        terminal.wait_for("2 runs: 2 done")
        assert terminal.process.wait(WITHIN_S) == 0


def test_ctrl_c_does_not_end_the_jobs_and_prints_how_to(tmp_path: Path) -> None:
    with watching(tmp_path, submit.__file__) as terminal:
        terminal.wait_for("n2")
        terminal.process.send_signal(signal.SIGINT)
        said = terminal.wait_for("ends them")
        again = f"`python submit.py watch tiny --runs {shlex.quote(str(tmp_path))}` shows them again"
        assert f"the jobs continue: {again}" in said
        assert terminal.process.wait(WITHIN_S) == 130
        assert [state.state for state in read_runs(tmp_path)] == ["running", "queued"]


def test_ctrl_c_within_a_finalizer_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python discards an exception that is raised there, as it does in the callback of a weak reference."""
    monkeypatch.setattr(follow, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(sys, "unraisablehook", lambda *_: None)
    states = iter(["running", "running", "done", "done"])

    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    class Runs:
        notice = ""

        def read(self) -> list[RunState]:
            make_run(tmp_path, "s/a", next(states))
            found = read_runs(tmp_path)
            Finalized()
            return found

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            follow.follow(Runs(), tmp_path, out=StringIO())
    finally:
        signal.signal(signal.SIGINT, before)
    assert "the jobs continue" in capsys.readouterr().err


def test_without_a_terminal_one_line_per_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    sleep = contextlib.nullcontext(lambda seconds: clock.__setitem__(0, clock[0] + 6.0))
    monkeypatch.setattr(follow, "_signal_waiter", lambda: sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    base = RunState(RunDir(tmp_path / "s/a"), "queued", steps=9)
    shown = [replace(base, state="running", step=step) for step in range(4)]

    class Runs:
        notice = ""
        todo = iter([[base], *([state] for state in shown), [replace(base, state="done", step=9)]])

        def read(self) -> list[RunState]:
            return next(self.todo)

    out = StringIO()
    states = follow.follow(Runs(), tmp_path, out=out)  # type: ignore[arg-type]
    lines = ["queued", "running  step 0/9", "running  step 2/9", "done  step 9/9"]
    assert out.getvalue().splitlines() == [*(f"s/a {line}" for line in lines), "", "1 run: 1 done"]
    assert follow.exit_code(states) == 0
    assert follow.exit_code([replace(base, state="failed")]) == 1


def test_a_line_of_a_run() -> None:
    running = RunState(RunDir(Path("s/a")), "running", step=20, steps=40, loss=2.25, eta_s=70.0)
    assert follow.change_line(running) == "s/a running  step 20/40  loss 2.25  ETA 1:10 min"
    failed = replace(running, state="failed", message="rank 1:\n no", loss=None, eta_s=None, emulated=True)
    assert follow.change_line(failed) == "s/a failed  step 20/40  emulated  rank 1: no"


def test_a_low_window_shows_active_and_failed_runs_first() -> None:
    done = [RunState(RunDir(Path(f"s/n{number}")), "done") for number in range(8)]
    for first in (
        RunState(RunDir(Path("s/first")), "running"),
        RunState(RunDir(Path("s/first")), "failed", cause="stopped"),
    ):
        for notice, rows in (("", 4), ("slow", 3)):
            lines = str(follow.live_table([*done, first], 8, notice)).splitlines()
            assert len(lines) == 7
            assert ("first" in lines[-rows - 1], lines[-1]) == (True, f"and {9 - rows} more")
    assert "more" not in str(follow.live_table(done, 12))
