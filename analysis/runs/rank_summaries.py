"""Sums and percentiles of the measured steps of each rank, without keeping the steps in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.runs.cache import cached
from analysis.runs.columns import Columns, FrameOfRuns
from analysis.runs.map_runs import map_runs
from analysis.runs.missing_ranks import missing_ranks
from analysis.runs.run_records import damaged, hosts_of, mark_measured
from analysis.runs.step_columns import SECONDS, StepFile, parse_steps, step_files
from disttrain.records.run_directory import RunDir

_SUMS = tuple(name for name in SECONDS if name != "start_s")
_PERCENTILES = {"step_p50_s": 50, "step_p95_s": 95, "step_p99_s": 99, "step_max_s": 100}
RANK_COLUMNS: dict[str, str] = {
    "run": "category",  # `path` of the run
    "rank": "int32",
    "host": "category",  # node of the newest attempt; empty if unknown
    "steps": "int64",  # measured steps
    "samples": "int64",
    **dict.fromkeys(_SUMS, "float64"),  # sums over the measured steps; NaN where a step lacks the value
    **dict.fromkeys(_PERCENTILES, "float64"),  # NaN where steps share records
}
"""Columns of `summarize_ranks` and their types."""
_SETTINGS = ("included", "world_size", "last_attempt", "left_out", "warmup_steps")
"""Values of a run on which its rows depend beside its step records."""


def summarize_ranks(runs: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """One row a run and rank with measured steps (`RANK_COLUMNS`), and the problems of reading.

    `runs` is a table of `load`. Memory holds the step records of a few runs at a time, so that it does not
    grow with the number of steps. The cache keeps the rows of a run, so that unchanged runs are not parsed.
    """
    ranks = FrameOfRuns(RANK_COLUMNS)
    problems: list[str] = []
    for columns, hosts, messages in map_runs(_summarize_run, runs, small_results=True):
        ranks.append(columns, hosts)
        problems += messages
    return ranks.frame(runs["path"].tolist()), tuple(problems)


def _summarize_run(row: pd.Series) -> tuple[Columns, list[str], list[str]]:
    run, hosts = RunDir(Path(row["path"])), hosts_of(row)
    problems: list[str] = []
    try:
        files = step_files(run)
        settings = " ".join(["ranks", *(f"{name}={row[name]}" for name in _SETTINGS)])
        paths = [path for *_, path in files]
        if files:
            table, problems, _ = cached(run.path, paths, lambda notes: _summary(files, row, notes), settings)
        else:
            table = _summary(files, row, problems)
        columns: Columns = {name: table[name].to_numpy() for name in table.column_names}
        columns["host"] = hosts.of_ranks(columns.pop("attempt"), columns["rank"])
    except Exception as error:  # a damaged file of one run must not hide the others
        return {}, hosts.names, [*problems, damaged(run, error)]
    return columns, hosts.names, problems


def _summary(files: Sequence[StepFile], row: pd.Series, notes: list[str]) -> pa.Table:
    """Rows of a run: `RANK_COLUMNS` without run and host, and the newest attempt of each rank."""
    steps = parse_steps(files, notes)
    mark_measured(steps, row)
    notes += missing_ranks(steps, row)
    steps = {name: values[steps["measured"]] for name, values in steps.items()}
    order = np.argsort(steps["rank"], kind="stable")
    rank = steps["rank"][order]
    starts = np.flatnonzero(np.r_[True, rank[1:] != rank[:-1]][: rank.size])
    ends = np.r_[starts[1:], rank.size][: starts.size] - 1
    ranks: Columns = {"attempt": steps["attempt"][order][ends], "rank": rank[starts]}
    for name in ("steps", "samples", *_SUMS):
        dtype = np.float64 if name in _SUMS else np.int64
        values = steps[name][order]
        ranks[name] = np.add.reduceat(values, starts, dtype=dtype) if rank.size else np.empty(0, dtype)
    single = np.split(np.where(steps["steps"] == 1, steps["step_s"], np.nan)[order], starts[1:])
    found = np.empty((len(_PERCENTILES), starts.size))
    for index, step_s in enumerate(single[: starts.size]):
        found[:, index] = np.percentile(step_s, [*_PERCENTILES.values()])
    return pa.table(ranks | dict(zip(_PERCENTILES, found, strict=True)))
