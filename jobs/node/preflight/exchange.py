"""Exchange of facts and verdict between the nodes of an attempt, through files in its folder.

Each node writes its facts. Node 0 reads all of them, and writes `preflight.json`, for which the other nodes
wait. In mode full, node 0 first publishes the endpoint of the measurement. That the files of each node arrive
is itself the check that the run directory is shared. Standard library only.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from disttrain.records.json_files import read_json_or_none, write_json
from disttrain.records.run_directory import Attempt
from jobs.node import peers
from jobs.node.allocation import Allocation
from jobs.node.preflight.checks import NodeFacts
from jobs.node.rendezvous import Endpoint, RendezvousError, endpoint_of, refresh
from jobs.node.waiting import poll_until

_ENDPOINT = "bandwidth-endpoint.json"
RESULT = "bandwidth.json"
"""Result of `disttrain.comm_bench.preflight` in the folder of the pre-flight."""


class NodeFailed(RuntimeError):
    """Another node has ended with an error while this node waited; the message is one line."""


def _read_fresh(path: Path) -> dict[str, Any] | None:
    """The content of a file that another node writes; None until it is there."""
    refresh(path.parent)
    return read_json_or_none(path)


def _raise_if_failed(attempt: Attempt) -> None:
    """Raise `NodeFailed` if a node has recorded a failure: node 0 writes its verdict before its own exit."""
    failed = [(node, code) for node, code in sorted(peers.node_exit_codes(attempt).items()) if code]
    if failed and not attempt.preflight.exists():
        raise NodeFailed(f"node {failed[0][0]} has ended with exit code {failed[0][1]}")


def write_facts(attempt: Attempt, facts: NodeFacts) -> None:
    """Publish the facts of this node."""
    if not attempt.is_replaced():
        write_json(attempt.preflight_facts(facts.node), asdict(facts))


def read_all_facts(
    attempt: Attempt, nodes: int, within_s: float, allocation: Allocation | None
) -> dict[int, tuple[NodeFacts, float]]:
    """Facts of all nodes by rank, each with the time at which this node saw them by its own clock.

    Nodes whose facts do not arrive within `within_s` seconds are missing. Raises `NodeFailed` and `JobEnded`.
    """
    found: dict[int, tuple[NodeFacts, float]] = {}

    def complete() -> bool | None:
        # see `rendezvous.refresh`
        names = set(os.listdir(attempt.preflight_folder))
        for node in range(nodes):
            path = attempt.preflight_facts(node)
            if node not in found and path.name in names and (record := read_json_or_none(path)):
                found[node] = (NodeFacts(**record), time.time())
        if len(found) < nodes:
            _raise_if_failed(attempt)
        return len(found) == nodes or None

    poll_until(complete, within_s, allocation)
    return dict(sorted(found.items()))


def write_verdict(attempt: Attempt, record: dict[str, Any]) -> None:
    """Publish `preflight.json`."""
    if not attempt.is_replaced():
        write_json(attempt.preflight, record)


def wait_for_verdict(attempt: Attempt, within_s: float, allocation: Allocation | None) -> dict[str, Any]:
    """The content of `preflight.json`. Raises `RendezvousError` after `within_s` seconds, `NodeFailed` and
    `JobEnded`."""

    def published() -> dict[str, Any] | None:
        record = _read_fresh(attempt.preflight)
        if record is None:
            _raise_if_failed(attempt)
        return record

    found = poll_until(published, within_s, allocation)
    if found is None:
        raise RendezvousError(f"node 0 did not publish {attempt.preflight.name} within {within_s:g} s")
    return found


def publish_endpoint(attempt: Attempt, endpoint: Endpoint) -> None:
    """Publish the endpoint of the measurement of the bandwidth."""
    write_json(attempt.preflight_folder / _ENDPOINT, asdict(endpoint))


def wait_for_endpoint(attempt: Attempt, within_s: float, allocation: Allocation | None) -> Endpoint | None:
    """The endpoint of the measurement; None if node 0 published the verdict without one.

    Raises `RendezvousError` after `within_s` seconds, `NodeFailed` and `JobEnded`.
    """

    def published() -> dict[str, Any] | None:
        record = _read_fresh(attempt.preflight_folder / _ENDPOINT)
        if record is None and _read_fresh(attempt.preflight) is None:
            _raise_if_failed(attempt)
            return None
        return record or {}

    found = poll_until(published, within_s, allocation)
    if found is None:
        raise RendezvousError(f"node 0 did not publish {attempt.preflight.name} within {within_s:g} s")
    return endpoint_of(found) if found else None
