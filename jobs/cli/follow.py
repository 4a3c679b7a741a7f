"""`--wait` and `watch`: show runs until all have ended.

A terminal shows one table, redrawn every second and after each resize of the window. The table is on the
alternate screen, so that a resize leaves no old lines behind. Other outputs get one line per change.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from jobs.cli.command_output import print_error
from jobs.cli.formatting import count, duration, number, runs_flag
from jobs.cli.plain_text import printable
from jobs.cli.run_lookup import run_label
from jobs.cli.status_table import (
    COLUMNS,
    OPTIONAL_COLUMNS,
    RIGHT_ALIGNED,
    STATE_COLOURS,
    queue_reason,
    resource_cells,
    state_counts,
    status_table,
    step_of,
    table_rows,
    throughput,
)
from jobs.cli.terminal import can_redraw, console, has_colour
from jobs.status.run_state import RunState

if TYPE_CHECKING:
    from rich.table import Table

POLL_INTERVAL_S = 1.0
PROGRESS_INTERVAL_S = 10.0
_DISPLAY_PRIORITY = (
    "running",
    "starting",
    "submitting",
    "failed",
    "lost",
    "corrupt",
    "stopped",
    "cancelled",
    "queued",
    "planned",
    "done",
)


IsShown = Callable[[RunState], bool]


class RunSource(Protocol):
    """Runs that can be read repeatedly, such as `jobs.cli.polling.PolledRuns`."""

    notice: str
    """A warning to show with the table; empty for none."""

    def read(self) -> list[RunState]: ...


def follow(
    runs: RunSource, root: Path, *, is_shown: IsShown = lambda state: True, out: TextIO | None = None
) -> list[RunState]:
    """Show the runs until none is active, and return their last states.

    Runs for which `is_shown` is false are hidden, and not returned.

    Raises `KeyboardInterrupt` at Ctrl-C, after printing how to watch or cancel the jobs.
    """
    out = out or sys.stdout
    show = _show_live_table if can_redraw(out) else _print_changes
    states: list[RunState] = []
    try:
        states = show(runs, is_shown, out)
    except KeyboardInterrupt:
        sweeps = " ".join(sorted({state.sweep for state in runs.read() if state.active}))
        where = runs_flag(root)
        print(
            f"stopped watching; the jobs continue: `submit.py watch {sweeps}{where}` shows them again, "
            f"`submit.py cancel {sweeps}{where}` ends them",
            file=sys.stderr,
        )
        raise
    states = [*filter(is_shown, states)]
    table = status_table(states, coloured=has_colour(out)) if can_redraw(out) else ""
    print(table, state_counts(states), sep="\n", file=out)
    return states


def all_ended(states: Sequence[RunState]) -> bool:
    """Whether no run is active."""
    return not any(state.active for state in states)


def exit_code(states: Sequence[RunState]) -> int:
    """0 when every run is done, else 1 and a line on stderr."""
    undone = [state for state in states if state.state != "done"]
    if undone:
        print_error(f"{len(undone)} of {count(len(states), 'run')} not done")
    return 1 if undone else 0


def _show_live_table(runs: RunSource, is_shown: IsShown, out: TextIO) -> list[RunState]:
    from rich.live import Live

    shown = console(out)
    with _signal_waiter() as wait, Live(console=shown, screen=True, auto_refresh=False) as live:
        while True:
            states = runs.read()
            live.update(live_table([*filter(is_shown, states)], shown.size.height, runs.notice), refresh=True)
            if all_ended(states):
                return states
            wait(POLL_INTERVAL_S)


def live_table(states: Sequence[RunState], height: int, notice: str = "") -> Table:
    """The status table for rich, limited to `height` lines.

    Runs that do not fit are counted in the last line; `_DISPLAY_PRIORITY` orders the shown ones.
    """
    from rich.markup import escape
    from rich.table import Table

    title = f"{state_counts(states)}   (Ctrl-C stops watching, not the jobs)"
    if notice:
        title += f"\n{escape(printable(notice))}"
    table = Table(title=title, expand=True, box=None)
    max_rows = max(1, height - 4 - bool(notice))  # title, header, count of hidden runs, last line
    shown = list(states)
    if len(shown) > max_rows:
        shown = sorted(shown, key=lambda state: _DISPLAY_PRIORITY.index(state.displayed_state))[:max_rows]
    cell_rows = table_rows(shown)
    visible = [
        index
        for index, name in enumerate(COLUMNS)
        if name not in OPTIONAL_COLUMNS or any(cells[index] for cells in cell_rows)
    ]
    for name in (COLUMNS[index] for index in visible):
        align = "right" if name in RIGHT_ALIGNED else "left"
        table.add_column(name, justify=align, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for state, cells in zip(shown, cell_rows, strict=True):
        visible_cells = (escape(printable(cells[index])) for index in visible)
        table.add_row(*visible_cells, style=STATE_COLOURS.get(state.displayed_state, ""))
    if len(states) > len(shown):
        table.add_row(f"and {len(states) - len(shown)} more")
    return table


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


def _print_changes(runs: RunSource, is_shown: IsShown, out: TextIO) -> list[RunState]:
    last: dict[Path, tuple[str, int | None, float]] = {}
    notice = ""
    with _signal_waiter() as wait:
        while True:
            states = runs.read()
            if runs.notice != notice:
                notice = runs.notice
                print(
                    f"warning: {notice}" if notice else "all clusters answer again",
                    file=sys.stderr,
                    flush=True,
                )
            for state in filter(is_shown, states):
                shown, step, at = last.get(state.run.path, ("", None, 0.0))
                now = time.monotonic()
                moved = state.step != step and now - at >= PROGRESS_INTERVAL_S
                if state.displayed_state != shown or (moved and state.state == "running"):
                    print(change_line(state), file=out, flush=True)
                    last[state.run.path] = (state.displayed_state, state.step, now)
            if all_ended(states):
                return states
            wait(POLL_INTERVAL_S)


def change_line(state: RunState) -> str:
    """`sweep/run running  step 20/300  812 samples/s  loss 2.31  ETA 1:10 min`."""
    parts = [f"{run_label(state.run)} {state.displayed_state}"]
    if state.step is not None:
        parts.append(f"step {step_of(state)}")
    if rate := throughput(state):
        value, _, now = rate.partition(" ")
        parts.append(f"{value} samples/s {now}".rstrip())
    if state.loss is not None:
        parts.append(f"loss {number(state.loss)}")
    if state.eta_s is not None:
        parts.append(f"ETA {duration(state.eta_s)}")
    parts += [cell for cell in resource_cells(state) if cell]
    if state.emulated:
        parts.append("emulated")
    if state.state != "done" and state.message:
        parts.append(" ".join(state.message.split()))
    parts += queue_reason(state)
    return "  ".join(parts)
