"""Runs whose nodes are one machine: nodes of a mini-cluster, or of the local scheduler."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir

Machine = Literal["mini-cluster", "local"]
_CONFIG = re.compile(r"/run/disttrain-([^/]+)/slurm\.conf")
"""Configuration of a mini-cluster's Slurm, whose nodes are network namespaces."""


def one_machine(run: RunDir) -> Machine | None:
    """The machine of the last attempt of a run; None for a run on one node, on several machines, or without
    a record."""
    for attempt in run.attempts()[-1:]:
        record = read_json_or_none(attempt.record) or {}
        if len(record.get("nodes") or []) < 2:
            return None
        if record.get("cluster") == "local":
            return "local"
        if minicluster_of(attempt) is not None:
            return "mini-cluster"
    return None


def minicluster_of(attempt: Attempt) -> str | None:
    """Name of the mini-cluster that the attempt ran on; None for another cluster, or without a record."""
    node = read_json_or_none(attempt.node_record(0)) or {}
    found = _CONFIG.fullmatch(str((node.get("slurm") or {}).get("SLURM_CONF")))
    return found[1] if found else None


def one_machine_of(paths: Sequence[str]) -> list[Machine]:
    """`one_machine` of each run directory that has it."""
    found = (one_machine(RunDir(Path(path))) for path in paths)
    return [each for each in found if each is not None]
