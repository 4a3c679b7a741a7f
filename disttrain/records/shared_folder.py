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
"""Longest time in which a running job finds the `STOP` file of the user, if it checks at least so often."""
_SHARE_OF_AGE = 0.05
_COARSEST_TIME_S = 2.0
"""Coarsest times of modification of a file system, with a margin."""
_LISTED_WITHIN_S = 600.0
"""Longest time between two listings of a folder."""


def growing_interval(first_s: float, longest_s: float, age_s: float) -> float:
    """An interval of a twentieth of the age of the run, at least `first_s` and at most `longest_s`.

    A short run is followed closely, and a long one rarely. An interval of 0 stays 0.
    """
    return min(max(first_s, longest_s), max(first_s, _SHARE_OF_AGE * age_s)) if first_s else 0.0


class WatchedFolder:
    """Names in a folder, which is listed again if its state has changed, and every `_LISTED_WITHIN_S`.

    A file that is created in the same tick of the server's clock as the file before it leaves the times of
    the folder unchanged. So a listing is used again only if it is some seconds younger than the first read
    of the state. Lustre takes the times from the client that creates the file, and never sets them back: a
    file from a node whose clock is slow leaves them unchanged too. The listing after `_LISTED_WITHIN_S`
    finds it.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._state: tuple[int, ...] = ()
        """Identity, times and links of the folder, first read at `_state_read`."""
        self._state_read = self._listed = 0.0
        self._names: list[str] = []

    def names(self) -> list[str]:
        """The names in the folder; empty if it is missing. Raises `OSError` for any other failure."""
        try:
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return []
        try:
            status, now = os.fstat(folder), self._now()
            state = (status.st_dev, status.st_ino, status.st_nlink, status.st_mtime_ns, status.st_ctime_ns)
            # two threads may read: in this order of assignments, the other one at most lists once more
            if state != self._state:
                self._state_read, self._state = now, state
            is_settled = self._listed > self._state_read + _COARSEST_TIME_S
            if not is_settled or now >= self._listed + _LISTED_WITHIN_S:
                self._names, self._listed = os.listdir(folder), now
        finally:
            os.close(folder)
        return self._names


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
            self._found = (now, self._attempt.superseded(self._folder.names()))
        return self._found[1]


class StopFile:
    """The user's `STOP` file, read at intervals that grow from `first_s` to `STOP_FOUND_WITHIN_S`.

    The file is read within a call of `exists`. A call reads it if the next one, after as long as this one,
    would be too late.
    """

    def __init__(self, path: Path, first_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._first_s = first_s
        self._now = now
        self._began = self._called = now()
        self._due = -float("inf")
        self._exists = False

    def exists(self) -> bool:
        """Whether the file exists, or existed at an earlier read."""
        now = self._now()
        next_call = 2 * now - self._called
        self._called = now
        if not self._exists and next_call >= self._due:
            self._due = now + growing_interval(self._first_s, STOP_FOUND_WITHIN_S, now - self._began)
            with suppress(OSError):  # the file system does not answer: the next read may find it
                self._exists = self._path.name in os.listdir(self._path.parent)
        return self._exists
