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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from jobs.cli.formatting import duration, number
from jobs.cli.run_lookup import label
from jobs.cli.status_table import HEAD, RIGHT, USAGE_HEAD, rows, status_table, tally, usage, waiting, word_of
from jobs.status.run_state import RunState

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


class Reading(Protocol):
    """Runs that can be read again and again."""

    notice: str
    """Something to say beside the table, for as long as it is so."""

    def read(self) -> list[RunState]: ...


def follow(runs: Reading, root: Path, *, out: TextIO | None = None) -> list[RunState]:
    """Show the runs until none is on its way or at work; their last states.

    Raises `KeyboardInterrupt` at Ctrl-C, after saying that the jobs live on.
    """
    out = out or sys.stdout
    show = _on_terminal if out.isatty() else _as_lines
    states: list[RunState] = []
    try:
        states = show(runs, out)
    except KeyboardInterrupt:
        sweeps = " ".join(sorted({state.sweep for state in runs.read() if state.active}))
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


def _on_terminal(runs: Reading, out: TextIO) -> list[RunState]:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=out)
    with _woken_by_resize() as wake, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            states = runs.read()
            live.update(live_table(states, console.size.height, runs.notice), refresh=True)
            if settled(states):
                return states
            wake.wait(POLL_S)
            wake.clear()


def live_table(states: Sequence[RunState], height: int, notice: str = "") -> Table:
    """The table as rich draws it; where the window is too low, what matters most now comes first."""
    from rich.markup import escape
    from rich.table import Table

    title = f"{tally(states)}   (Ctrl-C stops watching, not the jobs)"
    if notice:
        title += f"\n{escape(notice)}"
    table = Table(title=title, expand=True, box=None)
    room = max(1, height - 4 - bool(notice))  # title, head, the line on what is left out, the last line
    shown = list(states)
    if len(shown) > room:
        shown = sorted(shown, key=lambda state: _URGENCY.index(word_of(state)))[:room]
    lines = rows(shown)
    used = [
        index
        for index, name in enumerate(HEAD)
        if name not in USAGE_HEAD or any(cells[index] for cells in lines)
    ]
    for name in (HEAD[index] for index in used):
        align = "right" if name in RIGHT else "left"
        table.add_column(name, justify=align, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for state, cells in zip(shown, lines, strict=True):
        table.add_row(*(escape(cells[index]) for index in used), style=_STYLES.get(word_of(state), ""))
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


def _as_lines(runs: Reading, out: TextIO) -> list[RunState]:
    last: dict[Path, tuple[str, int | None, float]] = {}
    told = ""
    while True:
        states = runs.read()
        if runs.notice != told:
            told = runs.notice
            print(f"warning: {told}" if told else "all clusters answer again", file=sys.stderr, flush=True)
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
    parts += [word for word in usage(state) if word]
    if state.emulated:
        parts.append("emulated")
    if state.state != "done" and state.message:
        parts.append(" ".join(state.message.split()))
    parts += waiting(state)
    return "  ".join(parts)
