"""JSON Lines files that records are appended to, also beside the training loop and on a full disk.

Imports without torch.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from disttrain.errors import is_disk_full
from disttrain.records.json_files import to_json
from disttrain.runtime import log

KEPT_BYTES = 16 * 2**20
"""Bytes that wait in memory for a disk that is full or does not answer: tens of thousands of steps."""
FLUSHED_LINES = 200
"""As many lines are written without a call of `flush`."""


@contextmanager
def drop_if_disk_full() -> Iterator[None]:
    """Skip the rest of the block where the disk is full; any other error is raised."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise


class JsonLinesWriter:
    """Appends records to a JSON Lines file, many in one write.

    `run(name, write)` has `write` run, perhaps on another thread; by default at once. On a full disk records
    wait for the next `flush`, and those beyond `KEPT_BYTES` are lost, so that the training goes on. Any other
    error is raised in `run`.
    """

    def __init__(
        self,
        path: Path,
        run: Callable[[Hashable, Callable[[], None]], None] = lambda name, write: write(),
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._run = path, run
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 -- closed in close()
        self._lines: deque[bytes] = deque()
        self._block = bytearray()  # of the thread that writes
        self._added = self._on_disk = self._lost = 0

    def add(self, record: Any) -> None:
        """Append a record as one line of strict JSON: a number that is not finite becomes null.

        The caller's thread encodes it: the encoder holds the interpreter's lock, so on another thread it
        would stall the training loop for longer."""
        line = f"{to_json(record)}\n".encode()
        if self._added - self._on_disk + len(line) > KEPT_BYTES:
            self._lost += 1
            return
        self._added += len(line)
        self._lines.append(line)
        if len(self._lines) >= FLUSHED_LINES:
            self.flush()

    def flush(self) -> None:
        """Have all waiting records written, or as many as there is room for."""
        self._run(self, self._write)

    def close(self) -> None:
        """Have all records written that there is room for, the number of lost lines logged, and the file
        closed."""
        self._run(self, self._close)

    def _write(self) -> None:
        was_full = bool(self._block)
        while self._lines:
            self._block += self._lines.popleft()
        with drop_if_disk_full():
            while self._block:
                written = os.write(self._file.fileno(), self._block)
                del self._block[:written]
                self._on_disk += written
        if self._block and not was_full:
            log.error("the disk is full: records wait in memory", path=str(self._path))
        if was_full and not self._block:
            log.info("records are written again", path=str(self._path), lines_lost=self._lost)

    def _close(self) -> None:
        self._write()
        if lost := self._lost + self._block.count(b"\n"):
            log.error("records are lost: the disk is full or too slow", path=str(self._path), lines=lost)
        with drop_if_disk_full():  # some file systems report a full disk only on close
            self._file.close()
