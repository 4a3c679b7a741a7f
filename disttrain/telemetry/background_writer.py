"""Writing of records beside the training loop, so that a slow file system delays no step."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor


class BackgroundWriter:
    """Runs writes on one thread, in the order in which they were submitted.

    The thread releases the interpreter's lock while it waits for the file system. An exception of a write is
    raised by the next call of `submit` or `wait`.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "records")
        self._due: dict[Hashable, Callable[[], None]] = {}
        self._error: Exception | None = None

    def submit(self, name: Hashable, write: Callable[[], None]) -> None:
        """Have `write` run. It replaces a write of the same `name` that has not begun, so that a file system
        slower than the run writes only the newest state."""
        self._raise_error()
        self._due[name] = write
        self._thread.submit(self._run, name)

    def wait(self) -> None:
        """Wait until all submitted writes have run."""
        self._thread.submit(lambda: None).result()
        self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, name: Hashable) -> None:
        try:
            self._due.pop(name, lambda: None)()
        except Exception as error:
            self._error = self._error or error
