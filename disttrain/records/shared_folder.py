"""Reads of the shared file system while a run trains: few, because the nodes of all jobs share one server.

NFS answers `stat` of a path from a cache for up to a minute, but compares a folder with the server when the
folder is opened. Each read here therefore opens a folder. Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from disttrain.records.run_directory import Attempt

STOP_FOUND_WITHIN_S = 20.0
"""Longest time in which a running job finds the `STOP` file of the user."""
_SHARE_OF_AGE = 0.05
_COARSEST_TIME_S = 2.0
"""Coarsest times of modification of a file system, with a margin."""


def growing_interval(first_s: float, longest_s: float, age_s: float) -> float:
    """An interval of a twentieth of the age of the run, at least `first_s` and at most `longest_s`.

    A short run is followed closely, and a long one rarely. An interval of 0 stays 0.
    """
    return min(max(first_s, longest_s), max(first_s, _SHARE_OF_AGE * age_s)) if first_s else 0.0


class WatchedFolder:
    """Names in a folder, which is listed again only if its time of modification has changed.

    A file that is created in the same tick of the server's clock as the file before it leaves that time
    unchanged. So a listing counts only if it is some seconds younger than the first sight of the time.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._listed: tuple[tuple[int, ...], float, bool, list[str]] = ((), 0.0, False, [])
        """State of the folder, when it was first seen, whether the listing counts, and the names. Replaced as
        a whole, because two threads may read."""

    def names(self) -> list[str]:
        """The names in the folder; empty if it is missing. Raises `OSError` for any other failure."""
        try:
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return []
        try:
            status, now = os.fstat(folder), self._now()
            state = (status.st_dev, status.st_ino, status.st_mtime_ns)
            known, since, counts, names = self._listed
            if state != known:
                since, counts = now, False
            if not counts:
                names = os.listdir(folder)
                self._listed = (state, since, now > since + _COARSEST_TIME_S, names)
        finally:
            os.close(folder)
        return names


class AttemptWatch:
    """Finds a newer attempt, or another run directory at the same path, with few reads."""

    def __init__(self, attempt: Attempt, now: Callable[[], float] = time.monotonic) -> None:
        self._attempt = attempt
        self._folder = WatchedFolder(attempt.path.parent, now)
        self._now = now
        self._found: tuple[float, str | None] = (-float("inf"), None)
        """Time of the newest read, and its result. Replaced as a whole, because two threads may read."""

    def superseded(self, max_age_s: float = 0.0) -> str | None:
        """`Attempt.superseded`, as a read found it that is at most `max_age_s` old. Raises `OSError`."""
        now = self._now()
        if now - self._found[0] >= max_age_s:
            self._found = (now, self._attempt.superseded_by(self._folder.names()))
        return self._found[1]


class StopFile:
    """The user's `STOP` file, read at intervals that grow from `first_s` to `STOP_FOUND_WITHIN_S`."""

    def __init__(self, path: Path, first_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._first_s = first_s
        self._now = now
        self._began = self._due = now()
        self._exists = False

    def exists(self) -> bool:
        """Whether the file exists, or existed at an earlier read."""
        now = self._now()
        if not self._exists and now >= self._due:
            interval = growing_interval(self._first_s, STOP_FOUND_WITHIN_S, now - self._began)
            self._due = now + interval - self._first_s / 2  # callers come about every `first_s`
            self._exists = self._read()
        return self._exists

    def _read(self) -> bool:
        with suppress(OSError):  # missing, or the file system does not answer: the next read may find it
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.stat(self._path.name, dir_fd=folder)
                return True
            finally:
                os.close(folder)
        return False
