"""Step records of runs: one record for each step of the final lineage, and durations of measured steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.read.load import read_metrics
from disttrain.records.json_files import read_jsonl
from disttrain.records.log_histogram import durations
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir

RunId = tuple[str, str]
"""Sweep and run name."""


def step_times_s(table: pd.DataFrame) -> Mapping[RunId, NDArray[np.float64]]:
    """Durations in seconds of the measured steps on rank 0, for each included run with step records."""
    times = {}
    for row in table[table["included"]].itertuples():
        metrics, _ = read_metrics(row.path)
        if metrics is not None:
            found = recorded_step_s(Path(row.path), json.loads(row.left_out), metrics.attempt)
            times[(row.sweep, row.run)] = found if found.size else _from_histogram(metrics)
    return times


def read_steps(
    run: RunDir, rank: int, last_attempt: int | None = None, unreadable: list[str] | None = None
) -> dict[int, tuple[int, Any]]:
    """Attempt and record of each step of one rank, in order of steps.

    Steps that share a record (a step aggregate) are under the first of them. An attempt that resumes from a
    checkpoint repeats the steps after it: the newest attempt's record of a step counts, and records of older
    attempts after the first step of a newer one are dropped.

    Messages on lines that cannot be read are appended to `unreadable`.

    Raises:
        CorruptFile: a record cannot be read, and `unreadable` is None.
        FileNotFoundError: no attempt has step records of the rank.
    """
    found: dict[int, tuple[int, Any]] = {}
    paths = [(attempt.number, attempt.steps(rank)) for attempt in run.attempts()]
    there = [(n, path) for n, path in paths if path.exists() and (last_attempt is None or n <= last_attempt)]
    if not there:
        raise FileNotFoundError(f"{run.path} has no step records of rank {rank}")
    for number, path in there:
        first: int | None = None
        for record in read_jsonl(path, unreadable):
            step = record["first"] if "first" in record else record["step"]
            if first is None:
                first = step
                found = {before: kept for before, kept in found.items() if before < first}
            found[step] = (number, record)
    return found


def recorded_step_s(run: Path, left_out: Sequence[Sequence[int]], last_attempt: int) -> NDArray[np.float64]:
    """Durations in seconds of the steps on rank 0 outside these ranges; none without readable records."""
    try:
        found = read_steps(RunDir(run), 0, last_attempt, unreadable=[])
        times = [
            durations(record["bins"]) if "bins" in record else np.array([record["step_s"]], dtype=np.float64)
            for step, (_, record) in found.items()
            if not any(first <= step <= last for first, last in left_out)
        ]
    except (OSError, KeyError, TypeError, ValueError):
        return np.empty(0)
    return np.concatenate(times) if times else np.empty(0)


def _from_histogram(metrics: Metrics) -> NDArray[np.float64]:
    """Bin centres, each repeated by its count."""
    if metrics.step_time is None:
        return np.empty(0)
    edges = np.asarray(metrics.step_time.histogram.edges_s)
    return np.repeat((edges[:-1] + edges[1:]) / 2, metrics.step_time.histogram.counts)
