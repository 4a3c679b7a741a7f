"""JSON Lines files that survive a full disk: records wait in memory until there is room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from disttrain.errors import is_disk_full
from disttrain.records.json_files import to_json
from disttrain.runtime import log

KEPT_BYTES = 16 * 2**20
"""Bytes that wait in memory for a full disk: tens of thousands of steps."""
BLOCK_BYTES = 65536
"""Bytes that wait for the next `flush` at most, while the disk has room: some hundred steps."""


@contextmanager
def drop_if_disk_full() -> Iterator[None]:
    """Skip the rest of the block where the disk is full; any other error is raised."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise


def json_line(record: Any) -> bytes:
    """A record as one line of strict JSON: a number that is not finite becomes null."""
    return f"{to_json(record)}\n".encode()


class JsonLinesWriter:
    """Appends records to a JSON Lines file, in writes of up to `BLOCK_BYTES`.

    On a full disk records wait for the next `flush`, and those beyond `KEPT_BYTES` are lost, so that the
    training goes on. Any other error is raised.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 -- closed in close()
        self._waiting = bytearray()
        self._full = False
        self._lost = 0

    def add(self, record: Any) -> None:
        """Append a record as one line."""
        self.add_lines(json_line(record))

    def add_lines(self, lines: bytes) -> None:
        """Append complete lines."""
        if self._full and len(self._waiting) + len(lines) > KEPT_BYTES:
            self._lost += lines.count(b"\n")
            return
        self._waiting += lines
        if len(self._waiting) >= BLOCK_BYTES and not self._full:
            self.flush()

    def flush(self) -> None:
        """Write all waiting records, or as many as there is room for."""
        with drop_if_disk_full():
            while self._waiting:
                del self._waiting[: os.write(self._file.fileno(), self._waiting)]
        was_full, self._full = self._full, bool(self._waiting)
        if self._full and not was_full:
            log.error("the disk is full: records wait in memory", path=str(self._path))
        if was_full and not self._full:
            log.info("records are written again", path=str(self._path), lines_lost=self._lost)

    def close(self) -> None:
        """Write what there is room for, log the number of lost lines, and close the file."""
        self.flush()
        lost = self._lost + self._waiting.count(b"\n")
        if lost:
            log.error("the disk is full: records are lost", path=str(self._path), lines=lost)
        with drop_if_disk_full():  # some file systems report a full disk only on close
            self._file.close()
