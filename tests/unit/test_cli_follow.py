"""`--wait` and `watch`: the live table on a terminal, lines elsewhere, Ctrl-C."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json, write_json
from jobs.cli import follow
from jobs.cli.tables import status_table
from jobs.status.run_state import RunState, read_runs, read_state
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
    """A window in which `submit.py watch` shows a run at work and one that waits."""
    make_run(root, "tiny/n1", "running")
    make_run(root, "tiny/n2", "queued")
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
        assert (
            f"the jobs continue: `submit.py watch tiny --runs {shlex.quote(str(tmp_path))}` shows them again"
            in said
        )
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
    monkeypatch.setattr(follow, "POLL_INTERVAL_S", 0.0)
    steps = iter([("queued", "running"), ("queued", "running"), ("running", "done"), ("done", "done")])

    class Runs:
        notice = ""

        def read(self) -> list[RunState]:
            for name, state in zip(("b", "a"), next(steps), strict=True):
                make_run(tmp_path, f"s/{name}", state)
            return read_runs(tmp_path)

    out = StringIO()
    states = follow.follow(Runs(), tmp_path, out=out)
    assert out.getvalue().splitlines() == [
        "s/a running  step 20/40  812.5 samples/s  loss 2.25  ETA 1:10 min",
        "s/b queued",
        "s/a done  step 20/40  812.5 samples/s  loss 2.25",
        "s/b running  step 20/40  812.5 samples/s  loss 2.25  ETA 1:10 min",
        "s/b done  step 20/40  812.5 samples/s  loss 2.25",
        "",
        "2 runs: 2 done",
    ]
    assert follow.exit_code(states) == 0
    make_run(tmp_path, "s/c", "failed")
    assert follow.exit_code(read_runs(tmp_path)) == 1


def test_a_low_window_shows_active_and_failed_runs_first(tmp_path: Path) -> None:
    from rich.console import Console

    for number in range(10):
        make_run(tmp_path, f"s/n{number}", "running" if number == 9 else "done")
    console = Console(width=120, height=8, record=True, file=StringIO())
    console.print(follow.live_table(read_runs(tmp_path), 8))
    text = console.export_text()
    assert "n9" in text
    assert "and 6 more" in text
    assert len(text.splitlines()) <= 8


@pytest.mark.parametrize("cause", ["stopped", "cancelled"])
def test_a_low_window_shows_runs_that_the_user_ended(tmp_path: Path, cause: str) -> None:
    failed = [read_state(make_run(tmp_path, f"s/n{number}", "failed")) for number in range(10)]
    table = follow.live_table([replace(state, cause=cause) for state in failed], 8)
    assert str(table).count(cause) == 1 + 4


USAGE = {"gpu_utilization": 0.874, "gpu_memory_used_bytes": 61.25e9, "gpu_power_w": 412.4}


def with_usage(root: Path, name: str, state: str = "running", **usage: float) -> None:
    run = make_run(root, name, state)
    write_json(run.progress, read_json(run.progress) | usage)


def test_utilization_memory_and_power_of_running_runs_are_shown(tmp_path: Path) -> None:
    with_usage(tmp_path, "s/gpu", **USAGE, cpu_percent=99.0, rss_bytes=2e9)
    with_usage(tmp_path, "s/cpu", cpu_percent=198.2, rss_bytes=379e6)
    with_usage(tmp_path, "s/over", "done", **USAGE)
    gpu, cpu = "gpu 87%  61.2 GB  412 W", "cpu 198%   379 MB"
    text = status_table(read_runs(tmp_path))
    assert gpu in text
    assert cpu in text
    assert text.count(" W") == 1
    lines = [follow.change_line(state) for state in read_runs(tmp_path)]
    assert [line.endswith(gpu) for line in lines] == [False, True, False]


def test_without_utilization_its_columns_are_omitted(tmp_path: Path) -> None:
    from rich.console import Console

    def drawn() -> str:
        console = Console(width=160, height=20, record=True, file=StringIO())
        console.print(follow.live_table(read_runs(tmp_path), 20))
        return console.export_text()

    make_run(tmp_path, "s/a", "running")
    assert "UTIL" not in drawn()
    assert "UTIL" not in status_table(read_runs(tmp_path))
    with_usage(tmp_path, "s/b", gpu_utilization=0.5)
    text = drawn()
    assert "UTIL" in text
    assert "gpu 50%" in text
    assert "POWER" not in text
