"""Gather the facts of an attempt's nodes on node 0, and spread its verdict: files in the attempt's folder.

This module alone knows the transport. Files need no torch and no network between the nodes, so that a node
that lacks either is named; that they arrive is itself the check that the run directory is shared. Standard
library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disttrain.records.json_files import read_json_or_none, write_json
from disttrain.records.run_directory import Attempt
from jobs.checks.node_facts import NodeFacts
from jobs.node import peers
from jobs.node.allocation import Allocation
from jobs.node.rendezvous import RendezvousError, refresh
from jobs.node.waiting import poll_until


class NodeFailed(RuntimeError):
    """Another node has ended with an error while this node waited; the message is one line."""


def publish(attempt: Attempt, path: Path, content: Mapping[str, Any]) -> None:
    if not attempt.is_replaced():
        write_json(path, content)


def gather_facts(
    attempt: Attempt, allocation: Allocation | None, within_s: float, nodes: int
) -> dict[int, tuple[NodeFacts, float]]:
    """Facts of all nodes by rank, each with the time at which this node saw them by its own clock.

    Nodes whose facts do not arrive within `within_s` seconds are missing. Raises `NodeFailed` and `JobEnded`.
    """
    seen: dict[int, tuple[NodeFacts, float]] = {}

    def complete() -> bool | None:
        # see `rendezvous.refresh`
        names = set(os.listdir(attempt.preflight_folder))
        for node in range(nodes):
            path = attempt.preflight_facts(node)
            if node not in seen and path.name in names and (record := read_json_or_none(path)):
                seen[node] = (NodeFacts(**record), time.time())
        if len(seen) < nodes:
            _raise_if_failed(attempt)
        return len(seen) == nodes or None

    poll_until(complete, within_s, allocation)
    return dict(sorted(seen.items()))


def answer_of_node_0(
    attempt: Attempt, allocation: Allocation | None, within_s: float, *paths: Path
) -> dict[str, Any]:
    """The content of the first of these files that node 0 has written.

    Raises `RendezvousError` after `within_s` seconds, `NodeFailed` and `JobEnded`.
    """

    def published() -> dict[str, Any] | None:
        for path in paths:
            refresh(path.parent)
            if (record := read_json_or_none(path)) is not None:
                return record
        _raise_if_failed(attempt)
        return None

    answer = poll_until(published, within_s, allocation)
    if answer is None:
        raise RendezvousError(f"node 0 did not publish {paths[0].name} within {within_s:g} s")
    return answer


def _raise_if_failed(attempt: Attempt) -> None:
    """Raise `NodeFailed` if a node has recorded a failure: node 0 writes its verdict before its own exit."""
    failed = [(node, code) for node, code in sorted(peers.node_exit_codes(attempt).items()) if code]
    if failed and not attempt.preflight.exists():
        raise NodeFailed(f"node {failed[0][0]} has ended with exit code {failed[0][1]}")
