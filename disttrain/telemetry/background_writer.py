"""Writing of records beside the training loop, so that a slow file system delays no step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from disttrain.runtime.json_lines import BLOCK_BYTES, KEPT_BYTES, JsonLinesWriter, json_line


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


class BackgroundJsonLines:
    """A `JsonLinesWriter` whose file is written by a `BackgroundWriter`.

    `add` encodes the record: the encoder holds the interpreter's lock, so on another thread it would stall
    the loop for longer.
    """

    def __init__(self, path: Path, writer: BackgroundWriter) -> None:
        self._file = JsonLinesWriter(path)
        self._writer = writer
        self._encoded = bytearray()
        self._blocks: deque[bytes] = deque()

    def add(self, record: Any) -> None:
        """Append a record as one line of strict JSON."""
        self._encoded += json_line(record)
        if len(self._encoded) >= BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Have all records written. Waits for the file system if it is `KEPT_BYTES` behind."""
        if self._encoded:
            self._blocks.append(bytes(self._encoded))
            self._encoded.clear()
        self._writer.submit(self, self._write)
        if len(self._blocks) > KEPT_BYTES // BLOCK_BYTES:
            self._writer.wait()

    def close(self) -> None:
        """Write what there is room for and close the file."""
        self.flush()
        self._writer.wait()
        self._file.close()

    def _write(self) -> None:
        while self._blocks:
            self._file.add_lines(self._blocks.popleft())
        self._file.flush()
