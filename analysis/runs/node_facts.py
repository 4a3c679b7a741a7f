"""Machine of the runs: processor, memory and kernel of their first nodes, and the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from analysis.runs.one_machine import minicluster_of
from analysis.units import binary_bytes
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir


def node_facts(paths: Iterable[str]) -> dict[str, list[str]]:
    """Values by property, over the last attempts of these runs; without properties that none records."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for attempt in RunDir(Path(path)).attempts()[-1:]:
            for name, value in _facts(attempt).items():
                found.setdefault(name, []).append(value)
    return {name: sorted(set(values)) for name, values in found.items()}


def _facts(attempt: Attempt) -> dict[str, str]:
    node = read_json_or_none(attempt.node_record(0)) or {}
    record = read_json_or_none(attempt.record) or {}
    mini = minicluster_of(attempt)
    slurm = (node.get("slurm") or {}).get("SLURM_CLUSTER_NAME")
    cluster = record.get("cluster")
    if mini is not None:
        cluster = f"Slurm mini-cluster {mini} on one machine"
    elif slurm:
        cluster = f"Slurm cluster {slurm}"
    memory = node.get("memory_bytes")
    facts = {
        "Cluster": cluster,
        "Processor": node.get("processor"),
        "Memory of a node": None if memory is None else binary_bytes(memory),
        "Kernel": node.get("kernel"),
    }
    return {name: str(value) for name, value in facts.items() if value}
