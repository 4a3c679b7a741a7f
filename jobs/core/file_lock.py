"""`fcntl.flock` with an error message for file systems that lack it. Standard library only."""

from __future__ import annotations

import fcntl
from pathlib import Path

from disttrain.errors import ConfigError


def lock(file: int, operation: int, path: Path) -> None:
    """Apply `fcntl.flock` to an open file, whose path is for the message.

    Raises `BlockingIOError` under `LOCK_NB` while another process holds the lock, and `ConfigError` if the
    file system cannot lock.
    """
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        raise ConfigError(
            f"cannot lock {str(path)!r}: {error.strerror}; --runs needs a file system with flock "
            "(Lustre: mount option flock; NFS: a lock service)"
        ) from None
