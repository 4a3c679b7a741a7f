"""`--wait` and `watch`: read runs again and again, and show them until all have ended.

A terminal shows one table, redrawn every second and after each resize of the window. The table is on the
alternate screen, so that a resize leaves no old lines behind. Other outputs get one line per change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from jobs import PROGRAM
from jobs.cli.command_output import print_error, progress_stream
from jobs.cli.formatting import count, duration, number, runs_flag
from jobs.cli.tables import (
    STATES,
    queue_reason,
    resource_cells,
    state_counts,
    status_table,
    step_of,
    throughput,
)
from jobs.cli.terminal import can_redraw, console, has_colour, printable
from jobs.schedulers.interface import Scheduler
from jobs.status.refresh import refresh, refresh_all
from jobs.status.run_state import RunState

if TYPE_CHECKING:
    from rich.text import Text

POLL_INTERVAL_S = 1.0
PROGRESS_INTERVAL_S = 10.0
QUERY_INTERVAL_S = 15.0
"""Seconds between scheduler queries. Files are read every second."""
_SCHEDULER_FIELDS = (
    "state", "retryable", "cause", "message", "before_agents", "silent", "job_id",
    "waits_for", "start_expected",
)  # fmt: skip
"""Fields of a `RunState` that a scheduler query may correct."""

IsShown = Callable[[RunState], bool]
Show = Callable[[Sequence[RunState], str], None]
"""Shows the runs, and a warning if it is not empty."""


class PolledRuns:
    """Runs that are read again and again.

    A thread queries the schedulers every `QUERY_INTERVAL_S`, since an unresponsive controller blocks for
    seconds. Meanwhile `read` returns the states from the files.
    """

    def __init__(self, read: Callable[[], list[RunState]], scheduler: Scheduler | None = None) -> None:
        """`scheduler` is queried as well if its jobs are processes of this host."""
        self._read = read
        self._scheduler = scheduler
        self._schedulers: dict[str, Scheduler] = {}
        self._corrected: dict[Path, tuple[RunState, RunState]] = {}
        """By run directory: the state from its files, and the state corrected by the scheduler."""
        self._queried = float("-inf")
        self._query_thread: threading.Thread | None = None
        self.notice = ""
        """Names the schedulers that do not answer; empty when all answer."""

    def read(self) -> list[RunState]:
        """The current states."""
        states = self._read()
        active = [state for state in states if state.active]
        is_due = time.monotonic() - self._queried >= QUERY_INTERVAL_S
        if active and not self._is_querying() and is_due:
            self._query_thread = threading.Thread(target=self._query, args=(active,), daemon=True)
            self._query_thread.start()
        return [self._with_correction(state) for state in states]

    def _is_querying(self) -> bool:
        return self._query_thread is not None and self._query_thread.is_alive()

    def _query(self, active: list[RunState]) -> None:
        warnings: list[str] = []
        found = refresh_all(active, warnings.append, self._schedulers)
        if self._scheduler is not None and self._scheduler.one_machine:
            found = refresh(found, self._scheduler, warn=warnings.append)
        self.notice = "; ".join(warnings)
        if warnings:  # without an answer, the name of the cluster is still unknown
            self._schedulers.clear()
        self._corrected = {
            before.run.path: (before, now) for before, now in zip(active, found, strict=True) if before != now
        }
        self._queried = time.monotonic()

    def _with_correction(self, state: RunState) -> RunState:
        """Apply the last correction until the files of the run change its state."""
        before, now = self._corrected.get(state.run.path, (state, state))
        if any(getattr(state, name) != getattr(before, name) for name in ("state", "submission", "attempt")):
            return state
        corrected = {name: getattr(now, name) for name in _SCHEDULER_FIELDS}
        return dataclasses.replace(state, **corrected, eta_s=state.eta_s if now.state == "running" else None)


def follow(
    runs: PolledRuns, root: Path, *, is_shown: IsShown = lambda state: True, out: TextIO | None = None
) -> list[RunState]:
    """Show the runs until none is active, and return their last states.

    Runs for which `is_shown` is false are hidden, and not returned.

    Raises `KeyboardInterrupt` at Ctrl-C, after printing how to watch or cancel the jobs.
    """
    out = out or progress_stream()
    display = _live_display(out) if can_redraw(out) else contextlib.nullcontext(_ChangeLines(out))
    try:
        with _signal_waiter() as wait, display as show:
            while True:
                states = runs.read()
                shown = [state for state in states if is_shown(state)]
                show(shown, runs.notice)
                if not any(state.active for state in states):
                    break
                wait(POLL_INTERVAL_S)
    except KeyboardInterrupt:
        sweeps = " ".join(sorted({state.sweep for state in runs.read() if state.active}))
        where = runs_flag(root)
        print(
            f"stopped watching; the jobs continue: `{PROGRAM} watch {sweeps}{where}` shows them again, "
            f"`{PROGRAM} cancel {sweeps}{where}` ends them",
            file=sys.stderr,
        )
        raise
    table = status_table(shown, coloured=has_colour(out)) if can_redraw(out) else ""
    print(table, state_counts(shown), sep="\n", file=out)
    return shown


def exit_code(states: Sequence[RunState]) -> int:
    """0 when every run is done, else 1 and a line on stderr."""
    undone = [state for state in states if state.state != "done"]
    if undone:
        print_error(f"{len(undone)} of {count(len(states), 'run')} not done")
    return 1 if undone else 0


@contextlib.contextmanager
def _live_display(out: TextIO) -> Iterator[Show]:
    from rich.live import Live

    screen = console(out)
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        yield lambda states, notice: live.update(live_table(states, screen.size.height, notice), refresh=True)


class _ChangeLines:
    """Print one line for each change, and each warning."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last: dict[Path, tuple[str, int | None, float]] = {}
        self._notice = ""

    def __call__(self, states: Sequence[RunState], notice: str) -> None:
        if notice != self._notice:
            self._notice = notice
            line = f"warning: {notice}" if notice else "all clusters answer again"
            print(line, file=sys.stderr, flush=True)
        for state in states:
            shown, step, at = self._last.get(state.run.path, ("", None, 0.0))
            now = time.monotonic()
            moved = state.step != step and now - at >= PROGRESS_INTERVAL_S
            if state.displayed_state != shown or (moved and state.state == "running"):
                print(change_line(state), file=self._out, flush=True)
                self._last[state.run.path] = (state.displayed_state, state.step, now)


def live_table(states: Sequence[RunState], height: int, notice: str = "") -> Text:
    """The status table for rich, limited to `height` lines.

    Runs that do not fit are counted in the last line; the order of `STATES` decides which ones are shown.
    """
    from rich.text import Text

    title = [
        f"{state_counts(states)}   (Ctrl-C stops watching, not the jobs)",
        *[printable(notice)] * bool(notice),
    ]
    shown, max_rows = list(states), max(1, height - 3 - len(title))  # header, count of hidden runs, last line
    if len(shown) > max_rows:
        order = list(STATES)
        shown = sorted(shown, key=lambda state: order.index(state.displayed_state))[:max_rows]
    more = [f"and {len(states) - len(shown)} more"] * (len(states) > len(shown))
    text = Text.from_ansi("\n".join([*title, status_table(shown, coloured=True), *more]))
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


@contextlib.contextmanager
def _signal_waiter() -> Iterator[Callable[[float], None]]:
    """A function that waits that many seconds, or until the window is resized.

    It raises `KeyboardInterrupt` after Ctrl-C. Python would discard the exception of a handler that runs in a
    finalizer or in the callback of a weak reference, so the first Ctrl-C is only recorded; a second one
    raises at once.

    The interpreter writes a byte to a pipe for each signal. A handler that set a `threading.Event` would
    deadlock where the signal interrupts the event's own methods.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    interrupted = False

    def record(*_: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True

    handlers = {signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None)}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        handlers[signal.SIGINT] = signal.signal(signal.SIGINT, record)
    wakeup_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def wait(seconds: float) -> None:
        if not interrupted and select.select([reader], [], [], seconds)[0]:
            os.read(reader, 4096)
        if interrupted:
            raise KeyboardInterrupt

    try:
        yield wait
    finally:
        signal.set_wakeup_fd(wakeup_fd)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def change_line(state: RunState) -> str:
    """`sweep/run running  step 20/300  812 samples/s  loss 2.31  ETA 1:10 min`."""
    rate, _, now = throughput(state).partition(" ")
    parts = [
        f"{state.label} {state.displayed_state}",
        f"step {step_of(state)}" if state.step is not None else "",
        f"{rate} samples/s {now}".rstrip() if rate else "",
        f"loss {number(state.loss)}" if state.loss is not None else "",
        f"ETA {duration(state.eta_s)}" if state.eta_s is not None else "",
        *resource_cells(state),
        "emulated" if state.emulated else "",
        " ".join(state.message.split()) if state.state != "done" and state.message else "",
        *queue_reason(state),
    ]
    return "  ".join(filter(None, parts))
