"""Sums and percentiles of the measured steps of each rank, without keeping the steps in memory."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.runs.columns import Columns, FrameOfRuns
from analysis.runs.run_records import map_runs, read_run_steps
from analysis.runs.step_columns import SECONDS

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


def summarize_ranks(runs: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """One row a run and rank with measured steps (`RANK_COLUMNS`), and the problems of reading.

    `runs` is a table of `load`. Memory holds the step records of a few runs at a time, so that it does not
    grow with the number of steps.
    """
    ranks = FrameOfRuns(RANK_COLUMNS)
    problems: list[str] = []
    for columns, hosts, messages in map_runs(_summarize_run, runs):
        ranks.append(columns, hosts)
        problems += messages
    return ranks.frame(runs["path"].tolist()), tuple(problems)


def _summarize_run(row: pd.Series) -> tuple[Columns, list[str], list[str]]:
    records = read_run_steps(row)
    steps = records.steps
    if not steps or not steps["measured"].any():
        return {}, records.hosts, records.problems
    steps = {name: values[steps["measured"]] for name, values in steps.items()}
    order = np.argsort(steps["rank"], kind="stable")
    rank = steps["rank"][order]
    starts = np.flatnonzero(np.r_[True, rank[1:] != rank[:-1]])
    ranks: Columns = {"rank": rank[starts], "host": steps["host"][order][np.r_[starts[1:], rank.size] - 1]}
    for name in ("steps", "samples", *_SUMS):
        ranks[name] = np.add.reduceat(steps[name][order], starts, dtype=None if name in _SUMS else np.int64)
    single = np.split(np.where(steps["steps"] == 1, steps["step_s"], np.nan)[order], starts[1:])
    percentiles = np.array([np.percentile(step_s, [*_PERCENTILES.values()]) for step_s in single])
    return ranks | dict(zip(_PERCENTILES, percentiles.T, strict=True)), records.hosts, records.problems
