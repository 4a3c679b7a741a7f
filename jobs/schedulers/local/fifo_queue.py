"""First-in-first-out queue of this user on this host; runs execute one at a time.

The submitter takes a numbered ticket, a small file. The job holds an flock on its ticket while it waits and
runs, and waits for its turn by a blocking flock on the ticket before its own. The kernel releases the lock of
a process that dies, so a dead job does not block the queue. If a ticket's job never starts, the ticket is
discarded after `GRACE_S` seconds, or once the file exists that the label names as `settled_by`.

The folder is under /tmp, independent of TMPDIR, so that all runs of a user on this host share it. Runs of
other users have queues of their own. `DISTTRAIN_QUEUE_DIR` names another folder. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from disttrain.errors import ConfigError
from disttrain.records.json_files import create_exclusive, read_json_or_none

GRACE_S = 120.0
"""Seconds from taking a ticket until its job must hold it."""

_DIGITS = 12

TicketState = Literal["held", "expected", "expired"]
"""`held`: by a live job. `expected`: the job may still start. `expired`: no job holds it."""


class QueueFolderError(ConfigError):
    """The queue's folder cannot be used, or other users can write to it."""


def folder() -> Path:
    """The queue's folder, created if missing. Raises `QueueFolderError` if other users can write to it."""
    given = os.environ.get("DISTTRAIN_QUEUE_DIR")
    path = Path(given) if given else Path(f"/tmp/disttrain-{os.getuid()}/queue")
    try:
        for directory in (path.parent, path) if not given else (path,):
            directory.mkdir(mode=0o700, parents=bool(given), exist_ok=True)
        found = os.lstat(path if given else path.parent)
    except OSError as error:
        raise QueueFolderError(f"the queue of this host cannot use {path}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise QueueFolderError(f"{path} must be a folder that only user {os.getuid()} can write to")
    return path


def _path(ticket: int) -> Path:
    return folder() / f"{ticket:0{_DIGITS}d}.ticket"


def _tickets() -> list[int]:
    return sorted(int(name[:-7]) for name in os.listdir(folder()) if name.endswith(".ticket"))


def take(label: dict[str, Any]) -> int:
    """Take the next ticket, with `label` as its content. Numbers increase, also across reboots of the host.

    Raises `QueueFolderError`.
    """
    try:
        return _take(label)
    except OSError as error:
        raise QueueFolderError(f"the queue of this host cannot use {folder()}: {error.strerror}") from None


def _take(label: dict[str, Any]) -> int:
    counter = os.open(folder() / "counter", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(counter, fcntl.LOCK_EX)
        last = int(os.pread(counter, _DIGITS, 0) or 0)
        ticket = max(last + 1, int(time.time()))
        os.pwrite(counter, b"%0*d" % (_DIGITS, ticket), 0)  # one write: the number is the old or the new one
        create_exclusive(_path(ticket), label)
    finally:
        os.close(counter)
    return ticket


def label(ticket: int) -> dict[str, Any] | None:
    """Content of a ticket; None for a discarded ticket."""
    return read_json_or_none(_path(ticket))


def find(wanted: dict[str, Any]) -> int | None:
    """The newest ticket with this label that a live job holds; None without one."""
    return next((t for t in reversed(_tickets()) if label(t) == wanted and ticket_state(t) == "held"), None)


def discard(ticket: int) -> None:
    """Discard a ticket, so that later jobs no longer wait for its job."""
    for path in (_path(ticket), _path(ticket).with_suffix(".shown")):
        path.unlink(missing_ok=True)


def ticket_state(ticket: int) -> TicketState:
    """Whether a job holds a ticket."""
    try:
        file = os.open(_path(ticket), os.O_RDONLY)
    except FileNotFoundError:
        return "expired"
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return "expired" if _expired(file, ticket) else "expected"
    except BlockingIOError:
        return "held"
    finally:
        os.close(file)


def _expired(file: int, ticket: int) -> bool:
    """Whether a ticket that no job holds has no place in the queue any more."""
    settled_by = (label(ticket) or {}).get("settled_by")
    return (
        _path(ticket).with_suffix(".shown").exists()
        or (settled_by is not None and os.path.exists(settled_by))
        or time.time() - os.fstat(file).st_mtime > GRACE_S
    )


@dataclass(frozen=True)
class QueueSlot:
    """A ticket held by this process."""

    ticket: int

    def wait_turn(self) -> None:
        """Wait until no earlier ticket is left. An exception from a signal handler ends the wait."""
        while before := [ticket for ticket in _tickets() if ticket < self.ticket]:
            _wait_for_end(before[-1])


@contextlib.contextmanager
def hold(ticket: int) -> Iterator[QueueSlot | None]:
    """Hold a ticket until the end of the block. Yields None for a discarded ticket."""
    try:
        file = os.open(_path(ticket), os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.set_inheritable(file, True)  # if this process is killed, its children hold the ticket
        _path(ticket).with_suffix(".shown").touch()
        yield QueueSlot(ticket) if _path(ticket).exists() else None
    finally:
        discard(ticket)
        os.close(file)


def _wait_for_end(ticket: int) -> None:
    """Wait until a ticket's job has ended, then discard the ticket."""
    try:
        file = os.open(_path(ticket), os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_SH)  # blocks until its job ends
        if _expired(file, ticket):
            discard(ticket)  # under the lock: a job that starts now finds no ticket
            return
    finally:
        os.close(file)
    time.sleep(0.1)  # its job is starting
