"""Coordinate the end of one attempt across nodes, through files in the attempt's folder.

Each node records its exit code, and node 0 closes the attempt. torchrun's store cannot serve for that: it
ends with torchrun. Standard library only.
"""

from __future__ import annotations

import os
import time

from disttrain.records.json_files import create_exclusive, read_json_or_none
from disttrain.records.run_directory import Attempt

NODE_EXITS_TIMEOUT_S = 10.0
"""Time for which node 0 waits for the exit codes of the other nodes, after its own torchrun ended."""
CLOSED_TIMEOUT_S = 60.0
"""Time for which the other nodes wait for node 0 to close the attempt."""
_POLL_S = 0.1


def record_node_exit(attempt: Attempt, node: int, code: int, ended_externally: bool) -> None:
    """Record the exit code of this node's torchrun, and whether it was ended from outside."""
    record = {"code": code, "asked_to_end": ended_externally, "time": time.time()}
    create_exclusive(attempt.node_exit(node), record)


def node_exit_codes(attempt: Attempt, nodes: int) -> dict[int, int]:
    """Exit codes of the nodes that have recorded one."""
    names = set(os.listdir(attempt.path))  # one directory listing for all nodes
    recorded = [node for node in range(nodes) if attempt.node_exit(node).name in names]
    records = {node: read_json_or_none(attempt.node_exit(node)) for node in recorded}
    return {node: int(record["code"]) for node, record in records.items() if record is not None}


def wait_for_node_exits(
    attempt: Attempt, nodes: int, within_s: float = NODE_EXITS_TIMEOUT_S
) -> dict[int, int]:
    """The exit codes of all nodes, or of those that have recorded one within the time."""
    deadline = time.monotonic() + within_s
    while len(codes := node_exit_codes(attempt, nodes)) < nodes and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return codes


def wait_for_closed_attempt(attempt: Attempt, within_s: float = CLOSED_TIMEOUT_S) -> bool:
    """Whether node 0 closed the attempt, or a newer start of the job superseded it, within the time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if (read_json_or_none(attempt.record) or {}).get("ended") or attempt.superseded_by() is not None:
            return True
        time.sleep(_POLL_S)
    return False
