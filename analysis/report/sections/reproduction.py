"""Reproduction: commands, environment and hashes of the runs."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.read.run import Run
from analysis.read.run_table import column_value
from analysis.report.common import Column, Section, Study, item_table
from analysis.units import binary_bytes

ORDER = 230

_PROVENANCE = {
    "tags": "Tags",
    "user_note": "Note",
    "code_hash": "Code (hash)",
    "git_commit": "Commit",
    "command": "Command",
    "host": "Host",
    "device": "Device",
    "backend": "Backend",
    "torch": "torch",
    "python": "Python",
    "model": "Model",
    "parameters": "Parameters",
    "dataset": "Data",
    "dataset_version": "Data version",
    "dataset_sha256": "Data (SHA-256)",
    "strategy": "Strategy",
    "threads_per_rank": "Compute threads of a rank",
    "warmup_steps": "Warm-up steps",
    "comm_method": "Exposed communication by",
    "preflight": "Pre-flight",
    "created": "Planned",
    "updated": "Measured",
    "cluster": "Cluster",
    "processor": "Processor",
    "memory_bytes": "Memory of a node",
    "kernel": "Kernel",
}


def provenance(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Values of the properties of runs, by name."""
    properties = {}
    for column, name in _PROVENANCE.items():
        text = binary_bytes if column == "memory_bytes" else str
        known = {column_value(run, column) for run in runs} - {None}
        values = [text(value) for value in sorted(known)]
        if column in ("created", "updated") and len(values) > 2:
            values = [f"{values[0]} to {values[-1]}"]
        if column == "git_commit" and any(column_value(run, "git_dirty") for run in runs):
            values = [f"{value} with uncommitted changes (see run.json)" for value in values]
        if values:
            properties[name] = values
    return properties


def build(study: Study) -> Section:
    """Empty without a run."""
    properties = provenance(study.included or study.runs)
    columns = [
        Column("property", get=lambda item: item[0]),
        Column("value", get=lambda item: "; ".join(item[1])),
    ]
    table = item_table("provenance", "Properties.", columns, properties.items())
    return Section("reproduction", "Reproduction", tables=[table])
