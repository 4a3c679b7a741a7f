"""Progress bars on stderr, shown after two seconds, and on a terminal only."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, TypeVar

from jobs.cli.terminal import can_redraw, console

if TYPE_CHECKING:
    from rich.progress import Progress

SHOWN_AFTER_S = 2.0

T = TypeVar("T")


def progress(items: Iterable[T], text: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar that counts them. `total` is their number, for items without a length."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with progress_bar(text, total) as advance:
        for item in items:
            yield item
            advance()


@contextlib.contextmanager
def progress_bar(text: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """A bar for the block, which calls the yielded function after each of `total` units.

    Without `total` the bar moves without a count.
    """
    if not can_redraw(sys.stderr):
        yield lambda: None
        return
    bar = _DelayedBar(text, total)
    try:
        yield bar.advance
    finally:
        bar.close()


class _DelayedBar:
    """A bar that a thread shows after `SHOWN_AFTER_S`."""

    def __init__(self, text: str, total: int | None) -> None:
        self._text, self._total, self._done = text, total, 0
        self._lock = threading.Lock()
        self._is_closed = False
        self._progress: Progress | None = None
        self._timer = threading.Timer(SHOWN_AFTER_S, self._show)
        self._timer.daemon = True
        self._timer.start()

    def advance(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self._done)

    def close(self) -> None:
        """Remove the bar, so that nothing of it remains on the terminal."""
        self._timer.cancel()
        with self._lock:
            self._is_closed = True
        self._timer.join()
        if self._progress is not None:
            self._progress.stop()

    def _show(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        count = [MofNCompleteColumn()] if self._total is not None else []
        columns = [TextColumn("{task.description}"), BarColumn(), *count, TimeElapsedColumn()]
        # stdout stays as it is: rich would print its text on stderr
        shown = Progress(*columns, console=console(sys.stderr), transient=True, redirect_stdout=False)
        with self._lock:
            if self._is_closed:
                return
            shown.add_task(self._text, total=self._total, completed=self._done)
            shown.start()
            self._progress = shown
