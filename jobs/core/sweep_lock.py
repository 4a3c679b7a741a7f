"""The lock of a sweep: one submitter at a time reads its states and changes them. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.regular_file import open_descriptor
from jobs.core import file_lock
from jobs.core.processes import host


@contextlib.contextmanager
def sweep_lock(folder: Path, wait_s: float = 5.0) -> Iterator[None]:
    """Lock a sweep's folder against other submitters. Creates the folder if missing.

    Raises `ConfigError` when the folder cannot be written or locked, or when another process holds the lock
    for longer than `wait_s` seconds. The kernel releases the lock of a process that dies.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = open_descriptor(folder / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise ConfigError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from None
    with open(descriptor, "r+", encoding="utf-8") as file:
        deadline = time.monotonic() + wait_s
        while not _locked(file.fileno(), folder / ".lock"):
            if time.monotonic() > deadline:
                file.seek(0)
                raise ConfigError(
                    f"sweep {folder.name!r} is being submitted by {file.read().strip() or 'another process'}"
                )
            time.sleep(0.05)
        file.truncate(0)
        with contextlib.suppress(OSError):  # on a full disk, the next write names its path
            os.write(file.fileno(), f"pid {os.getpid()} on {host()}".encode())
        yield


def _locked(file: int, path: Path) -> bool:
    try:
        file_lock.lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
    except BlockingIOError:
        return False
    return True
