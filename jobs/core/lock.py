"""Locks of files by `fcntl.flock`. The kernel releases the lock of a process that dies.

Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.json_files import open_descriptor
from jobs.core.processes import host


@contextlib.contextmanager
def locked(path: Path, operation: int) -> Iterator[int]:
    """Lock a file, which is created with its folder if missing; its descriptor.

    Raises `BlockingIOError` under `LOCK_NB` while another process holds the lock, and `ConfigError` if the
    folder cannot be written or the file system cannot lock.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_descriptor(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise ConfigError(f"cannot write to {str(path.parent)!r}: {error.strerror or error}") from None
    try:
        try:
            fcntl.flock(file, operation)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ConfigError(
                f"cannot lock {str(path)!r}: {error.strerror}; --runs needs a file system with flock "
                "(Lustre: mount option flock; NFS: a lock service)"
            ) from None
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def sweep_lock(folder: Path, wait_s: float = 5.0) -> Iterator[None]:
    """Lock a sweep's folder: one submitter at a time reads its states and changes them.

    Raises `ConfigError` as `locked`, or when another process holds the lock for longer than `wait_s` seconds.
    """
    path, deadline = folder / ".lock", time.monotonic() + wait_s
    with contextlib.ExitStack() as held:
        while True:
            try:
                file = held.enter_context(locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB))
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = path.read_text(encoding="utf-8").strip() or "another process"
                    raise ConfigError(f"sweep {folder.name!r} is being submitted by {holder}") from None
                time.sleep(0.05)
        with contextlib.suppress(OSError):  # on a full disk, the next write names its path
            os.ftruncate(file, 0)
            os.write(file, f"pid {os.getpid()} on {host()}".encode())
        yield
