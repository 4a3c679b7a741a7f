"""Coordinate the end of one attempt across nodes, through files in the attempt's folder.

Each node records its exit code, and node 0 closes the attempt. torchrun's store cannot serve for that: it
ends with torchrun. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

from disttrain.records.run_directory import Attempt

NODE_EXITS_TIMEOUT_S = 10.0
"""Time for which node 0 waits for the exit codes of the other nodes, after its own torchrun ended."""
CLOSED_TIMEOUT_S = 60.0
"""Time for which the other nodes wait for node 0 to close the attempt."""
_POLL_S = 0.1
_CLOSED = "closed"
_EXIT = re.compile(r"node-(\d+)\.code-(\d+)")


def record_node_exit(attempt: Attempt, node: int, code: int) -> None:
    """Record the exit code of this node's torchrun. A full disk has room for it: it is the name of a file."""
    attempt.exits.mkdir(exist_ok=True)
    attempt.node_exit(node, code).touch()


def node_exit_codes(attempt: Attempt) -> dict[int, int]:
    """Exit codes of the nodes that have recorded one."""
    found = map(_EXIT.fullmatch, sorted(_exit_names(attempt)))
    return {int(each[1]): int(each[2]) for each in found if each}


def _exit_names(attempt: Attempt) -> list[str]:
    try:
        return os.listdir(attempt.exits)
    except OSError:  # no node has ended yet, or the file system does not answer
        return []


def wait_for_node_exits(
    attempt: Attempt, nodes: int, within_s: float = NODE_EXITS_TIMEOUT_S
) -> dict[int, int]:
    """The exit codes of all nodes, or of those that have recorded one within the time."""
    deadline = time.monotonic() + within_s
    while len(codes := node_exit_codes(attempt)) < nodes and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return codes


def record_closed(attempt: Attempt) -> None:
    """Record for the other nodes that node 0 has closed the attempt, or has no room on the disk to do so."""
    with contextlib.suppress(OSError):
        (attempt.exits / _CLOSED).touch()


def wait_for_closed_attempt(attempt: Attempt, within_s: float = CLOSED_TIMEOUT_S) -> bool:
    """Whether node 0 closed the attempt, or a newer start of the job superseded it, within the time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if _CLOSED in _exit_names(attempt) or attempt.superseded_by() is not None:
            return True
        time.sleep(_POLL_S)
    return False
