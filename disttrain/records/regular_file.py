"""Open the files of a run directory that another user or a broken program may have put there.

A device has no end, a FIFO has no writer, and a link leads to a file of which the reader may be the only user
with access. None of them is a record. Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from disttrain.errors import CorruptFile

MAX_LINES_BYTES = 4 << 30
"""Largest JSON Lines file that is read as a whole: ten million step records of 400 bytes."""


class IrregularFile(CorruptFile, OSError):
    """A record that is not a regular file, is a link, or is too large."""


def open_regular(path: Path, max_bytes: int | None = None, *, follow_links: bool = False) -> BufferedReader:
    """Open a regular file for reading, without waiting for the writer of a FIFO.

    `follow_links` is for files that users lay out themselves, such as data sets. Raises `IrregularFile`, or
    another `OSError` as `open` does.
    """
    return open(open_descriptor(path, os.O_RDONLY, max_bytes, follow_links=follow_links), "rb")


def open_descriptor(
    path: Path | str, flags: int, max_bytes: int | None = None, *, follow_links: bool = False
) -> int:
    """As `open_regular`, by `os.open` with these flags; a new file is not for all users to write."""
    try:
        file = os.open(path, flags | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW), 0o664)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise IrregularFile(f"{path} is a symbolic link, not a file") from None
        if error.errno == errno.ENXIO:  # a socket
            raise IrregularFile(f"{path} is not a regular file") from None
        raise
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise IrregularFile(f"{path} is not a regular file")
    if max_bytes is not None and status.st_size > max_bytes:
        os.close(file)
        raise IrregularFile(f"{path} has {status.st_size} bytes, and a record has at most {max_bytes}")
    return file
