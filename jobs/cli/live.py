"""`--wait` and `watch`: runs as they go, until all have ended.

On a terminal one table that is redrawn every second and at once when the window changes its size; it
lives on the alternate screen, where nothing old can be left behind by a resize. Elsewhere a line for
each change.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from jobs.cli.find import label
from jobs.cli.render import HEAD, RIGHT, rows, status_table, tally, word_of
from jobs.cli.text import duration, number
from jobs.state import RunState

if TYPE_CHECKING:
    from rich.table import Table

POLL_S = 1.0
PROGRESS_LINE_EVERY_S = 10.0
_STYLES = {
    "running": "cyan",
    "done": "green",
    "failed": "red",
    "lost": "red",
    "corrupt": "red",
    "cancelled": "yellow",
}
_URGENCY = ("running", "submitting", "failed", "lost", "corrupt", "cancelled", "queued", "planned", "done")
Read = Callable[[], list[RunState]]


def follow(read: Read, root: Path, *, out: TextIO | None = None) -> list[RunState]:
    """Show the runs until none is on its way or at work; their last states.

    Raises `KeyboardInterrupt` at Ctrl-C, after saying that the jobs live on.
    """
    out = out or sys.stdout
    show = _on_terminal if out.isatty() else _as_lines
    states: list[RunState] = []
    try:
        states = show(read, out)
    except KeyboardInterrupt:
        sweeps = " ".join(sorted({state.sweep for state in read() if state.active}))
        where = "" if root == Path("runs") else f" --runs {root}"
        print(
            f"stopped watching; the jobs live on: `submit.py watch {sweeps}{where}` shows them again, "
            f"`submit.py cancel {sweeps}{where}` ends them",
            file=sys.stderr,
        )
        raise
    print(status_table(states) if out.isatty() else "", tally(states), sep="\n", file=out)
    return states


def settled(states: Sequence[RunState]) -> bool:
    """Whether nothing is left to wait for."""
    return not any(state.active for state in states)


def exit_code(states: Sequence[RunState]) -> int:
    """0 when every run is done, else 1."""
    return 0 if all(state.state == "done" for state in states) else 1


def _on_terminal(read: Read, out: TextIO) -> list[RunState]:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=out)
    with _woken_by_resize() as wake, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            states = read()
            live.update(live_table(states, console.size.height), refresh=True)
            if settled(states):
                return states
            wake.wait(POLL_S)
            wake.clear()


def live_table(states: Sequence[RunState], height: int) -> Table:
    """The table as rich draws it; where the window is too low, what matters most now comes first."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{tally(states)}   (Ctrl-C stops watching, not the jobs)", expand=True, box=None)
    for title in HEAD:
        align = "right" if title in RIGHT else "left"
        table.add_column(title, justify=align, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    room = max(1, height - 4)  # title, head, the line on what is left out, the last line
    shown = list(states)
    if len(shown) > room:
        shown = sorted(shown, key=lambda state: _URGENCY.index(word_of(state)))[:room]
    for state, cells in zip(shown, rows(shown), strict=True):
        table.add_row(*map(escape, cells), style=_STYLES.get(word_of(state), ""))
    if len(states) > len(shown):
        table.add_row(f"and {len(states) - len(shown)} more")
    return table


@contextlib.contextmanager
def _woken_by_resize() -> Iterator[threading.Event]:
    wake = threading.Event()
    before = signal.signal(signal.SIGWINCH, lambda *_: wake.set())
    try:
        yield wake
    finally:
        signal.signal(signal.SIGWINCH, before)


def _as_lines(read: Read, out: TextIO) -> list[RunState]:
    last: dict[Path, tuple[str, int | None, float]] = {}
    while True:
        states = read()
        for state in states:
            word, step, at = last.get(state.run.path, ("", None, 0.0))
            now = time.monotonic()
            moved = state.step != step and now - at >= PROGRESS_LINE_EVERY_S
            if word_of(state) != word or (moved and state.state == "running"):
                print(change_line(state), file=out, flush=True)
                last[state.run.path] = (word_of(state), state.step, now)
        if settled(states):
            return states
        time.sleep(POLL_S)


def change_line(state: RunState) -> str:
    """`sweep/run running  step 20/300  812 samples/s  loss 2.31  ETA 1:10 min`."""
    parts = [f"{label(state.run)} {word_of(state)}"]
    if state.step is not None:
        parts.append(f"step {state.step}/{state.steps}")
    if state.samples_per_s is not None:
        parts.append(f"{number(state.samples_per_s)} samples/s")
    if state.loss is not None:
        parts.append(f"loss {number(state.loss)}")
    if state.eta_s is not None:
        parts.append(f"ETA {duration(state.eta_s)}")
    if state.emulated:
        parts.append("emulated")
    if state.state != "done" and state.message:
        parts.append(" ".join(state.message.split()))
    return "  ".join(parts)
