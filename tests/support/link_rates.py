"""Rates of the links of a ring of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt


def ring(nodes: int, slow: Mapping[int, float], usual: float = 100e6) -> dict[tuple[int, int], float]:
    """Rates between neighbours in both directions; each link of a node in `slow` has this fraction."""
    pairs = {(node, (node + 1) % nodes) for node in range(nodes)}
    both = pairs | {(target, source) for source, target in pairs}
    return {
        (source, target): usual * min(slow.get(source, 1.0), slow.get(target, 1.0))
        for source, target in sorted(both)
    }


def preflight_of(rates: Mapping[tuple[int, int], float], attempt: int = 0) -> dict[str, Any]:
    """The record of a pre-flight that measured these bytes per second between the nodes."""
    links = [{"source": a, "target": b, "bytes_per_s": rate} for (a, b), rate in rates.items()]
    bandwidth = {"backend": "gloo", "ranks": 4, "all_reduce": [], "links": links, "message_bytes": 2**20}
    bandwidth |= dict.fromkeys(("node_link_bytes_per_s", "ceiling_bytes_per_s", "floor_bytes_per_s"))
    record = {"attempt": attempt, "mode": "full", "verdict": "passed", "message": None}
    record |= {"at_fault": [], "problems": [], "nodes": [], "seconds": 1.0, "waited_s": 0.0}
    return record | {"bandwidth": bandwidth | {"seconds": 1.0}}


def record_rates(attempt: Attempt, rates: Mapping[tuple[int, int], float]) -> None:
    """Write the pre-flight of an attempt that measured these rates."""
    write_json(attempt.preflight, preflight_of(rates, attempt.number))
