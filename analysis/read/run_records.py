"""Steps, collectives and hardware samples of one run as columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.read.attempts import RunHosts
from analysis.read.collectives import read_collectives
from analysis.read.columns import Columns
from analysis.read.missing_ranks import missing_ranks
from analysis.read.samples import read_hardware
from analysis.read.step_columns import in_lineage, in_ranges, lineage_ends, read_step_columns
from disttrain.errors import in_one_line
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir


@dataclass
class RunRecords:
    """Columns of one run; `host` holds codes. Columns without rows may be absent."""

    steps: Columns = field(default_factory=dict)
    collectives: Columns = field(default_factory=dict)
    hardware: Columns = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    """The name for each code of a host."""
    cached: Path | None = None
    """The cached table of the steps."""
    problems: list[str] = field(default_factory=list)
    """One line for each record or file that could not be read."""
    incomplete: list[str] = field(default_factory=list)
    """`missing_ranks` of the run."""


def read_run(row: pd.Series) -> RunRecords:
    """Everything recorded in the directory of a run, given its row in a table of `load`."""
    return _read(row, steps_only=False)


def read_run_steps(row: pd.Series) -> RunRecords:
    """The step records of a run, given its row in a table of `load`."""
    return _read(row, steps_only=True)


def _read(row: pd.Series, *, steps_only: bool) -> RunRecords:
    run, found = RunDir(Path(row["path"])), RunRecords()
    hosts = hosts_of(row)
    try:
        steps, found.cached = read_step_columns(run, found.problems)
        ends = mark_measured(steps, row)
        steps["host"] = hosts.of_ranks(steps["attempt"], steps["rank"])
        found.steps = steps
        found.incomplete = missing_ranks(steps, row)
        if not steps_only:
            found.hardware = read_hardware(run, steps, hosts, found.problems)
            collectives = read_collectives(run, _int(row["world_size"]), found.problems)
            if collectives:
                collectives["host"] = hosts.of_ranks(collectives["attempt"], collectives["rank"])
                collectives["kept"] = in_lineage(collectives, ends)
            found.collectives = collectives
    except Exception as error:  # a damaged file of one run must not hide the others
        found.problems.append(damaged(run, error))
    found.hosts = hosts.names
    return found


def damaged(run: RunDir, error: Exception) -> str:
    """The problem of a run whose records cannot be read."""
    return f"records of {run.path}: {in_one_line(error)}"


def hosts_of(row: pd.Series) -> RunHosts:
    """Hosts of the ranks of a run, given its row in a table of `load`."""
    run = RunDir(Path(row["path"]))
    return RunHosts(run, _int(row["ranks_per_node"]), _ingested_hosts(run, row))


def mark_measured(steps: Columns, row: pd.Series) -> Mapping[tuple[int, int], int]:
    """Add the columns `kept` and `measured` of `frames.STEP_COLUMNS`; return `lineage_ends`."""
    ends = lineage_ends(steps, _int(row["last_attempt"]))
    steps["kept"] = in_lineage(steps, ends)
    steps["measured"] = steps["kept"] & ~in_ranges(steps["step"], _excluded(row, steps))
    return ends


def _excluded(row: pd.Series, steps: Columns) -> Sequence[Sequence[int]]:
    """Ranges of warm-up and profiled steps; without metrics, the configured warm-up of each attempt."""
    if pd.notna(row["left_out"]):
        ranges: list[list[int]] = json.loads(row["left_out"])
        return ranges
    warmup = _int(row["warmup_steps"]) or 0
    _, starts = np.unique(steps["attempt"], return_index=True)
    return [(int(first), int(first) + warmup - 1) for first in steps["step"][starts]]


def _ingested_hosts(run: RunDir, row: pd.Series) -> Sequence[str]:
    if pd.isna(row["ingested"]):
        return ()
    hosts: Sequence[str] = ((read_json_or_none(run.run_json) or {}).get("ingested") or {}).get("hosts", ())
    return hosts


def _int(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)
