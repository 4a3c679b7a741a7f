"""Coordinate the nodes of one attempt, through files in the attempt's folder.

Files need no torch and no network between the nodes, so that a node that lacks either is named; that they
arrive is itself the check that the run directory is shared. torchrun's store ends with torchrun. Each node
records its exit code, and node 0 closes the attempt. Standard library only.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from disttrain.records.json_files import create_exclusive, read_json_or_none, write_json
from disttrain.records.run_directory import Attempt
from disttrain.records.shared_folder import AttemptWatch, WatchedFolder
from jobs.node.allocation import LONGEST_JITTER, Allocation, jittered, poll_until

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


class CannotStart(RuntimeError):
    """The attempt cannot start on this node; the message is one line."""


class NodeFailed(RuntimeError):
    """Another node has ended with an error while this node waited; the message is one line."""


def after_first_end_s(config: Mapping[str, Any]) -> int:
    """Seconds that the other agents need after the first one has ended; the batch script limits them.

    In this time, node 0 may still wait for a silent node at the rendezvous, and closes the attempt.
    """
    return math.ceil(max(CLOSED_TIMEOUT_S, float(config["job"]["rendezvous_timeout_s"]) + _VERDICT_S))


Write = Callable[[Path, Mapping[str, Any]], object]


def publish(attempt: Attempt, path: Path, content: Mapping[str, Any], write: Write = write_json) -> None:
    """Write a file for the other nodes, unless another run directory has this path now."""
    if not attempt.is_replaced():
        write(path, content)


def record(attempt: Attempt, path: Path, content: Mapping[str, Any], write: Write = create_exclusive) -> None:
    """Write a file about the end of the attempt unless there is one; a full disk must not prevent the end."""
    with contextlib.suppress(OSError):
        publish(attempt, path, content, write)


def gather(
    attempt: Attempt, allocation: Allocation | None, within_s: float, nodes: int
) -> dict[int, tuple[dict[str, Any], float]]:
    """The published facts of all nodes by rank, each with the time at which this node saw them by its clock.

    Nodes whose facts do not arrive within `within_s` seconds are missing. Raises `NodeFailed` and `JobEnded`.
    """
    seen: dict[int, tuple[dict[str, Any], float]] = {}

    def complete() -> bool | None:
        names = set(os.listdir(attempt.preflight_folder))  # see `answer_of_node_0`
        for node in range(nodes):
            path = attempt.preflight_facts(node)
            if node not in seen and path.name in names and (facts := read_json_or_none(path)):
                seen[node] = (facts, time.time())
        if len(seen) < nodes:
            _raise_if_failed(attempt)
        return len(seen) == nodes or None

    poll_until(complete, within_s, allocation)
    return dict(sorted(seen.items()))


def answer_of_node_0(
    attempt: Attempt, allocation: Allocation | None, within_s: float, *paths: Path
) -> dict[str, Any]:
    """The content of the first of these files that node 0 has written.

    NFS caches that a file is absent, and compares a folder with the server when the folder is opened: it is
    listed before each read. Raises `CannotStart` after `within_s` seconds, `NodeFailed` and `JobEnded`.
    """

    def published() -> dict[str, Any] | None:
        for path in paths:
            with contextlib.suppress(OSError):
                os.listdir(path.parent)
            if (content := read_json_or_none(path)) is not None:
                return content
        _raise_if_failed(attempt)
        return None

    answer = poll_until(published, within_s, allocation)
    if answer is None:
        raise CannotStart(f"node 0 did not publish {paths[0].name} within {within_s:g} s")
    return answer


def _raise_if_failed(attempt: Attempt) -> None:
    """Raise `NodeFailed` if a node has recorded a failure: node 0 writes its verdict before its own exit."""
    failed = [(node, code) for node, code in sorted(node_exit_codes(attempt).items()) if code]
    if failed and not attempt.preflight.exists():
        raise NodeFailed(f"node {failed[0][0]} has ended with exit code {failed[0][1]}")


def _note(attempt: Attempt, name: str) -> None:
    """Record by the name of an empty file, for which a full disk has room."""
    if not attempt.is_replaced():
        attempt.exits.mkdir(exist_ok=True)
        (attempt.exits / name).touch()


def record_node_exit(attempt: Attempt, node: int, code: int) -> None:
    """Record the exit code of this node's torchrun."""
    _note(attempt, f"node-{node:02d}.code-{code}")


def record_stop(attempt: Attempt, cause: str, at: int) -> None:
    """Record for the other nodes when the processes of a command get their stop signal, in seconds since the
    epoch."""
    with contextlib.suppress(OSError):
        _note(attempt, f"stop-{cause}-{at}")


def record_closed(attempt: Attempt) -> None:
    """Record for the other nodes that node 0 has closed the attempt, or has no room on the disk to do so."""
    with contextlib.suppress(OSError):
        _note(attempt, _CLOSED)


def node_exit_codes(attempt: Attempt) -> dict[int, int]:
    """Exit codes of the nodes that have recorded one."""
    return _codes(_exit_names(attempt))


def is_closed(attempt: Attempt) -> bool:
    """Whether node 0 closed the attempt, or a newer start of the job superseded it."""
    return _CLOSED in _exit_names(attempt) or attempt.superseded() is not None


def _codes(names: Iterable[str]) -> dict[int, int]:
    matches = map(_EXIT.fullmatch, sorted(names))
    return {int(match[1]): int(match[2]) for match in matches if match}


def _exit_names(attempt: Attempt) -> list[str]:
    try:
        return os.listdir(attempt.exits)
    except OSError:  # no node has recorded anything, or the file system does not answer
        return []


def _first_stop(names: Iterable[str]) -> tuple[str, float] | None:
    """The cause and time of the first stop that a node has recorded."""
    stops = [(match[1], float(match[2])) for name in names if (match := _STOP.fullmatch(name))]
    return min(stops, key=lambda stop: stop[1], default=None)


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
