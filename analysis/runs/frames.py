"""Runs, their steps, collectives and hardware samples as typed frames."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import sched_getaffinity
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.runs import cache
from analysis.runs.load import KnownState, load, read_metrics
from analysis.runs.step_columns import SECONDS, Columns, in_lineage, in_ranges, read_step_columns
from disttrain.config.dotted_keys import get_key
from disttrain.errors import in_one_line
from disttrain.records.json_files import read_json_or_none
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json_or_none

STEP_COLUMNS: dict[str, str] = {
    "run": "category",  # `path` of the run
    "attempt": "int16",
    "rank": "int32",
    "host": "category",  # name of the node; empty if unknown
    "step": "int32",  # the first step of an aggregate
    "steps": "int32",  # 1, or the number of steps of an aggregate
    "samples": "int32",
    **dict.fromkeys(SECONDS, "float64"),  # sums for aggregates; NaN where not measured
    "measured": "bool",  # kept, and neither warm-up nor profiled
    "kept": "bool",  # part of the final model: not repeated after a resume
}
"""Columns of `Frames.steps` and their types."""


@dataclass(frozen=True)
class Frames:
    """Run directories as frames."""

    runs: pd.DataFrame
    """One row a run (`load.COLUMNS`, and the swept keys)."""
    steps: pd.DataFrame
    """One row a rank and step record (`STEP_COLUMNS`), in the order of run, attempt, rank and step."""
    collectives: pd.DataFrame
    hardware: pd.DataFrame
    problems: tuple[str, ...] = ()
    """One line for each record or file that could not be read."""


class _RunSteps(NamedTuple):
    columns: Columns
    hosts: list[str]
    """Names for the codes in the column `host`."""
    cached: Path | None
    problems: list[str]


def load_frames(
    sweeps: Iterable[Path | str],
    states: Mapping[Path, KnownState] | None = None,
    only: Collection[Path] | None = None,
) -> Frames:
    """Read the runs in these sweeps' folders; arguments and errors are those of `load`."""
    return read_frames(load(sweeps, states, only), whole_sweeps=only is None)


def read_frames(runs: pd.DataFrame, *, whole_sweeps: bool = False) -> Frames:
    """Frames of the runs of a table of `load`.

    Args:
        runs: a table of `load`.
        whole_sweeps: the table has all runs of its sweeps. Cached tables that none of them uses are deleted.
    """
    paths = [Path(path) for path in runs["path"]]
    with ThreadPoolExecutor(len(sched_getaffinity(0))) as threads:
        found = list(threads.map(_read_steps, paths))
    if whole_sweeps:
        used = {each.cached for each in found if each.cached is not None}
        for sweep in {path.parent for path in paths}:
            cache.remove_unused(sweep, used)
    problems = tuple(itertools.chain.from_iterable(each.problems for each in found))
    empty = pd.DataFrame()
    return Frames(runs, _joined(runs["path"].tolist(), found), empty, empty, problems)


def _read_steps(path: Path) -> _RunSteps:
    run, problems = RunDir(path), list[str]()
    try:
        columns, cached = read_step_columns(run, problems)
        metrics, _ = read_metrics(path)
        columns["kept"] = in_lineage(columns, metrics.attempt if metrics else None)
        excluded = in_ranges(columns["step"], _excluded(run, metrics, columns))
        columns["measured"] = columns["kept"] & ~excluded
        columns["host"], hosts = _hosts(run, columns, metrics)
    except OSError as error:
        problems.append(f"step records of {path}: {in_one_line(error)}")
        return _RunSteps({}, [], None, problems)
    return _RunSteps(columns, hosts, cached, problems)


def _excluded(run: RunDir, metrics: Metrics | None, columns: Columns) -> Sequence[tuple[int, int]]:
    """Ranges of warm-up and profiled steps: by `metrics.json`, or else by the configured warm-up."""
    if metrics is not None:
        return metrics.left_out or [(1, metrics.warmup_steps)]
    config = (read_run_json_or_none(run) or {}).get("config", {})
    warmup = get_key(config, "telemetry.warmup_steps") or 0
    attempts, starts = np.unique(columns["attempt"], return_index=True)
    return (
        [(int(first), int(first) + warmup - 1) for first in columns["step"][starts]] if attempts.size else []
    )


def _hosts(run: RunDir, columns: Columns, metrics: Metrics | None) -> tuple[NDArray[np.int32], list[str]]:
    """A code for each row, and the host's name for each code."""
    record = read_run_json_or_none(run) or {}
    per_node = (
        metrics.ranks_per_node if metrics else get_key(record.get("config", {}), "resources.gpus_per_node")
    )
    codes = np.zeros(columns["rank"].size, dtype=np.int32)
    names = {"": 0}
    if not per_node:
        return codes, [*names]
    node = columns["rank"] // per_node
    for number in np.unique(columns["attempt"]):
        rows = columns["attempt"] == number
        hosts = _hosts_of_attempt(run, int(number), int(node[rows].max()) + 1)
        codes[rows] = np.array([names.setdefault(host, len(names)) for host in hosts])[node[rows]]
    return codes, [*names]


def _hosts_of_attempt(run: RunDir, number: int, nodes: int) -> list[str]:
    """Names of the nodes by node rank, from the attempt's record or the nodes' own; empty if unknown."""
    attempt = run.attempt(number)
    listed: list[Any] = (read_json_or_none(attempt.record) or {}).get("nodes", [])
    if len(listed) >= nodes:
        return [str(host) for host in listed[:nodes]]
    return [str((read_json_or_none(attempt.node_record(n)) or {}).get("host", "")) for n in range(nodes)]


def _joined(paths: Sequence[str], found: Sequence[_RunSteps]) -> pd.DataFrame:
    """One frame of all runs. Arrays of single runs are released column by column, to halve the memory."""
    names = {"": 0}
    rows = [each.columns["step"].size if each.columns else 0 for each in found]
    for each in found:
        codes = np.array([names.setdefault(host, len(names)) for host in each.hosts], dtype=np.int32)
        if each.columns:
            each.columns["host"] = codes[each.columns["host"]]
    data: dict[str, Any] = {"run": pd.Categorical.from_codes(np.repeat(np.arange(len(rows)), rows), paths)}
    for name, dtype in STEP_COLUMNS.items():
        if name == "run":
            continue
        parts = [each.columns.pop(name) for each in found if each.columns]
        whole = np.concatenate(parts) if parts else np.empty(0)
        if name == "host":
            data[name] = pd.Categorical.from_codes(whole.astype(np.int32), [*names])
        else:
            data[name] = whole.astype(dtype, copy=False)
    return pd.DataFrame(data, copy=False)
