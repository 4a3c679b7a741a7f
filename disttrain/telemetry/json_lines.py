"""A file that lines are appended to, and what becomes of them while the disk is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disttrain.runtime import log

KEPT_BYTES = 16 * 2**20
"""How much waits in memory for a full disk: tens of thousands of steps."""
_AT_ONCE_BYTES = 8192


def is_disk_full(error: OSError) -> bool:
    """Whether it says that there is no room on the disk, or none left for this user."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def drop_if_disk_full() -> Iterator[None]:
    """What the block writes is left out where the disk is full: no more than the training can do without."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise


class JsonLinesWriter:
    """A night's training is worth more than its records: on a full disk they wait for the next `flush`, and
    what comes once `KEPT_BYTES` wait is lost. Any other error is raised."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 -- closed in close()
        self._waiting = bytearray()
        self._full = False
        self._lost = 0

    def add(self, line: str) -> None:
        """Take a line, given without its end."""
        encoded = f"{line}\n".encode()
        if self._full and len(self._waiting) + len(encoded) > KEPT_BYTES:
            self._lost += 1
            return
        self._waiting += encoded
        if len(self._waiting) >= _AT_ONCE_BYTES and not self._full:
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the system, or as many as there is room for."""
        with drop_if_disk_full():
            while self._waiting:
                del self._waiting[: os.write(self._file.fileno(), self._waiting)]
        was_full, self._full = self._full, bool(self._waiting)
        if self._full and not was_full:
            log.error("no room on the disk: records wait in memory", path=str(self._path))
        if was_full and not self._full:
            log.info("records are written again", path=str(self._path), lines_lost=self._lost)

    def close(self) -> None:
        """Write what can be written; what is lost is said."""
        self.flush()
        lost = self._lost + self._waiting.count(b"\n")
        if lost:
            log.error("no room on the disk: records are lost", path=str(self._path), lines=lost)
        with drop_if_disk_full():  # some file systems say it only here
            self._file.close()
