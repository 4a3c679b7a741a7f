"""Progress bars on stderr, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

from jobs.cli.terminal import can_redraw, console

SHOWN_AFTER_S = 2.0

T = TypeVar("T")


def progress(items: Iterable[T], text: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar that counts them if they take over two seconds.

    `total` is their number, for items without a length.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    show_at, advance = time.monotonic() + SHOWN_AFTER_S, None
    with contextlib.ExitStack() as stack:
        for done, item in enumerate(items):
            if advance is None and time.monotonic() >= show_at:
                advance = stack.enter_context(progress_bar(text, total))
            if advance is not None:
                advance(done)
            yield item


@contextlib.contextmanager
def progress_bar(text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar for the block, which calls the yielded function with the number of `total` units that are done.

    Without `total` the bar moves without a count. Nothing of it remains on the terminal.
    """
    if not can_redraw(sys.stderr):
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    count = [MofNCompleteColumn()] if total is not None else []
    columns = [TextColumn("{task.description}"), BarColumn(), *count, TimeElapsedColumn()]
    # stdout stays as it is: rich would print its text on stderr
    with Progress(*columns, console=console(sys.stderr), transient=True, redirect_stdout=False) as shown:
        task = shown.add_task(text, total=total)
        yield lambda done: shown.update(task, completed=done, refresh=True)
