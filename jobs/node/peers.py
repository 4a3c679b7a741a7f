"""How the nodes of one attempt end together: each says how its share ended, node 0 closes for all.

Files, because nothing else connects the agents, and torchrun's store ends with torchrun.
Standard library only.
"""

from __future__ import annotations

import os
import time

from disttrain.records.json_files import create_exclusive, read_json_or_none
from disttrain.records.run_directory import Attempt

NODE_EXITS_TIMEOUT_S = 10.0
"""How long node 0, its own share over, waits for word from the others."""
CLOSED_TIMEOUT_S = 60.0
"""How long the others wait for node 0 to close the attempt: srun ends a step a while after its first task."""
_POLL_S = 0.1


def record_node_exit(attempt: Attempt, node: int, code: int, asked_to_end: bool) -> None:
    """Leave word of how this node's torchrun ended."""
    word = {"code": code, "asked_to_end": asked_to_end, "time": time.time()}
    create_exclusive(attempt.node_exit(node), word)


def node_exit_codes(attempt: Attempt, nodes: int) -> dict[int, int]:
    """Exit codes of the nodes that have left word."""
    names = set(os.listdir(attempt.path))  # one question, however many nodes there are
    there = [node for node in range(nodes) if attempt.node_exit(node).name in names]
    words = {node: read_json_or_none(attempt.node_exit(node)) for node in there}
    return {node: int(word["code"]) for node, word in words.items() if word is not None}


def wait_for_node_exits(
    attempt: Attempt, nodes: int, within_s: float = NODE_EXITS_TIMEOUT_S
) -> dict[int, int]:
    """The exit codes of all nodes, or of those that have left word when the time is up."""
    deadline = time.monotonic() + within_s
    while len(codes := node_exit_codes(attempt, nodes)) < nodes and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return codes


def wait_for_closed_attempt(attempt: Attempt, within_s: float = CLOSED_TIMEOUT_S) -> bool:
    """Whether node 0 closed the attempt in time. One that was superseded is nobody's to close any more."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if (read_json_or_none(attempt.record) or {}).get("ended") or attempt.superseded_by() is not None:
            return True
        time.sleep(_POLL_S)
    return False
