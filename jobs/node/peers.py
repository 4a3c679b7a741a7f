"""Coordinate the end of one attempt across nodes, through files in the attempt's folder.

Each node records its exit code, and node 0 closes the attempt. torchrun's store cannot serve for that: it
ends with torchrun. Standard library only.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from disttrain.records.run_directory import Attempt
from disttrain.records.shared_folder import AttemptWatch, WatchedFolder
from jobs.node.backoff import LONGEST_JITTER, jittered

LISTED_EVERY_S = 15.0
"""Time between two reads of the exits of the other nodes, while the ranks train."""
PEER_GRACE_S = 10.0
"""Time for torchrun to end by itself after another node has failed."""
NODE_EXITS_TIMEOUT_S = LONGEST_JITTER * LISTED_EVERY_S + PEER_GRACE_S + 5.0
"""Time for which node 0 waits for the exit codes of the other nodes, after its own torchrun ended. It covers
the longest interval between two reads, the grace of torchrun, and the polls and files of both nodes."""
ENDING_TIMEOUT_S = 1.0
"""That time where the scheduler is ending the job: half of that between our SIGKILL and the scheduler's."""
CLOSED_TIMEOUT_S = 60.0
"""Time for which the other nodes wait for node 0 to close the attempt, besides its wait for silent nodes."""
_VERDICT_S = 30.0
"""Time in which node 0 records that a node is missing."""
_SUPERSEDED_EVERY = 5
"""Reads of the exits between two searches for a newer attempt, which is a rare event."""
_CLOSED = "closed"
_EXIT = re.compile(r"node-(\d+)\.code-(\d+)")
_STOP = re.compile(r"stop-([a-z]+)-(\d+)")


def after_first_end_s(config: Mapping[str, Any]) -> int:
    """Seconds that the other agents need after the first one has ended; the batch script limits them.

    In this time, node 0 may still wait for a silent node at the rendezvous, and closes the attempt.
    """
    return math.ceil(max(CLOSED_TIMEOUT_S, float(config["job"]["rendezvous_timeout_s"]) + _VERDICT_S))


def record_node_exit(attempt: Attempt, node: int, code: int) -> None:
    """Record the exit code of this node's torchrun. A full disk has room for it: it is the name of a file."""
    if attempt.is_replaced():
        return
    attempt.exits.mkdir(exist_ok=True)
    attempt.node_exit(node, code).touch()


def node_exit_codes(attempt: Attempt) -> dict[int, int]:
    """Exit codes of the nodes that have recorded one."""
    return _codes(_exit_names(attempt))


def _codes(names: Iterable[str]) -> dict[int, int]:
    found = map(_EXIT.fullmatch, sorted(names))
    return {int(each[1]): int(each[2]) for each in found if each}


def _exit_names(attempt: Attempt) -> list[str]:
    try:
        return os.listdir(attempt.exits)
    except OSError:  # the file system does not answer, or an attempt of an earlier version has no such folder
        return []


def record_stop(attempt: Attempt, cause: str, at: int) -> None:
    """Record for the other nodes when the processes of a command get their stop signal, in seconds since the
    epoch."""
    with contextlib.suppress(OSError):
        if attempt.is_replaced():
            return
        attempt.exits.mkdir(exist_ok=True)
        (attempt.exits / f"stop-{cause}-{at}").touch()


def _first_stop(names: Iterable[str]) -> tuple[str, float] | None:
    """The cause and time of the first stop that a node has recorded."""
    found = [match for name in names if (match := _STOP.fullmatch(name))]
    return min(((match[1], float(match[2])) for match in found), key=lambda stop: stop[1], default=None)


class PeerWatch:
    """Finds exits of other nodes and a newer attempt, while the ranks train."""

    def __init__(
        self, attempt: Attempt, node: int, nodes: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._exits = WatchedFolder(attempt.exits, now)
        self._has_peers = nodes > 1
        self._newer = AttemptWatch(attempt, now)
        self._node = node
        self._now = now
        self._next = now() + jittered(LISTED_EVERY_S)
        self._reads = 0
        self.failed: tuple[int, int] | None = None
        """Node and exit code of another node that has failed."""
        self.superseded = False
        """Whether the job was started again elsewhere."""
        self.stop: tuple[str, float] | None = None
        """Cause and time of a stop of the command that a node has recorded."""

    def read(self, *, at_once: bool = False) -> None:
        """Read the exits if it is time to; also the attempts if this process was suspended, or `at_once`."""
        now = self._now()
        if now < self._next and not at_once:
            return
        late = now > self._next + 2 * LISTED_EVERY_S
        self._next = now + jittered(LISTED_EVERY_S)
        self._reads += 1
        if at_once or late or self._reads % _SUPERSEDED_EVERY == 0:
            with contextlib.suppress(OSError):
                self.superseded = self._newer.superseded() is not None
        if self._has_peers and (self.failed is None or self.stop is None):
            names: list[str] = []
            with contextlib.suppress(OSError):  # the file system does not answer
                names = self._exits.names()
            self.stop = self.stop or _first_stop(names)
            codes = _codes(names).items()
            self.failed = self.failed or next(
                ((node, code) for node, code in codes if code and node != self._node), None
            )


def record_closed(attempt: Attempt) -> None:
    """Record for the other nodes that node 0 has closed the attempt, or has no room on the disk to do so."""
    with contextlib.suppress(OSError):
        if not attempt.is_replaced():
            (attempt.exits / _CLOSED).touch()


def is_closed(attempt: Attempt) -> bool:
    """Whether node 0 closed the attempt, or a newer start of the job superseded it."""
    return _CLOSED in _exit_names(attempt) or attempt.superseded() is not None
