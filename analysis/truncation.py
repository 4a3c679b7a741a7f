"""Truncation of a warm-up that is longer than the recorded one: means of the steps after it.

All repeats of a configuration leave out as many measured steps, on all ranks. Figures that step records hold
are computed anew; others (hardware samples, profiled collectives) stay those of all measured steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.read.columns import Columns
from analysis.read.load import read_metrics, swept_keys
from analysis.read.run_records import RunRecords, read_run_steps
from analysis.read.step_records import recorded_step_s
from analysis.stats.estimates import Floats
from analysis.stats.stationarity import stationarity
from analysis.step_statistics import (
    RunStatistics,
    StepStatistics,
    measured_step_s,
    statistics_of,
)
from disttrain.records.metrics import Metrics
from disttrain.records.steps import PHASES

_RATES = (
    "samples_per_s",
    "samples_per_s_per_rank",
    "samples_per_second_per_gpu",
    "throughput_images_per_sec",
    "tokens_per_s",
    "tokens_per_s_per_rank",
    "tokens_per_s_per_gpu",
    "model_flops_per_s_per_rank",
    "mfu",
)
"""Fields of `Metrics` that are proportional to the throughput."""
_PERCENTILES = {"step_p50_s": 50, "step_p95_s": 95, "step_p99_s": 99, "step_max_s": 100}


def truncate(table: pd.DataFrame, statistics: RunStatistics) -> tuple[pd.DataFrame, RunStatistics]:
    """The table of `load` and the statistics without the steps that `common_warm_up` finds.

    A configuration whose remaining steps are too few or not stationary stays as it is, so that its means have
    no interval. So does one with a rank without step records: its phases, which are means over the ranks,
    could not be computed anew.
    """
    found: dict[str, StepStatistics] = {}
    changed = table
    for repeats in _configurations(table, statistics):
        records = {index: read_run_steps(row) for index, row in repeats.iterrows()}
        series = {index: measured_step_s(each.steps) for index, each in records.items()}
        recorded = [records[index].steps for index, step_s in series.items() if step_s.size]
        dropped = _in_whole_records(recorded, common_warm_up([*series.values()]))
        reasons = {
            f"{row['sweep']}/{row['run']}": _missing(records[index])
            or why_not_left_out(series[index], dropped)
            for index, row in repeats.iterrows()
        }
        if any(reasons.values()):
            text = next(f"{name}: {reason}" for name, reason in reasons.items() if reason)
            known = [path for path in repeats["path"] if path in statistics]
            found |= {path: replace(statistics[path], not_truncated=text) for path in known}
            continue
        changed = table.copy() if changed is table else changed
        for index, row in repeats.iterrows():
            values = _truncated(row, records[index].steps, dropped)
            changed.loc[index, list(values)] = list(values.values())
            found[row["path"]] = statistics_of(series[index][dropped:])
    return changed, {**statistics, **found}


def truncated_metrics(row: Mapping[Any, Any]) -> Metrics | None:
    """`metrics.json` of the run of a row of `truncate`, with the figures of that row; None without the file.

    The communication of a step is that of the row's phases.
    """
    metrics, _ = read_metrics(row["path"])
    if metrics is None or not row["truncated_steps"] or not metrics.samples_per_s:
        return metrics
    factor = row["samples_per_s"] / metrics.samples_per_s
    known = {name: getattr(metrics, name) for name in _RATES}
    values: dict[str, Any] = {name: value * factor for name, value in known.items() if value is not None}
    values |= {name: row[name] for name in ("measured_steps", "measured_s")}
    phases = {name: None if pd.isna(row[name]) else float(row[name]) for name in PHASES}
    exposed_s = (phases["comm_wait_s"] or 0.0) + (phases["comm_transfer_s"] or 0.0)
    if metrics.communication_overhead_percent is not None:
        values["communication_overhead_percent"] = 100 * exposed_s / row["step_s"]
    if metrics.communication_computation_ratio is not None and phases["compute_s"]:
        values["communication_computation_ratio"] = exposed_s / phases["compute_s"]
    values |= {"composition": phases, "left_out": [tuple(each) for each in json.loads(row["left_out"])]}
    return metrics.model_copy(update=values)


def _configurations(table: pd.DataFrame, statistics: RunStatistics) -> list[pd.DataFrame]:
    """Repeats of each configuration in which a run has too short a warm-up."""
    short = {path for path, each in statistics.items() if each.stationarity.verdict == "warm-up too short"}
    if not short:
        return []
    runs = table[table["included"]]
    keys = ["sweep", "nodes", "world_size", "emulated", *swept_keys(table)]
    names = runs[keys].astype(str).agg(" ".join, axis=1)
    return [group for _, group in runs.groupby(names) if not short.isdisjoint(group["path"])]


def _missing(records: RunRecords) -> str:
    """What lacks of the step records of a run; empty where all ranks have them."""
    if not records.steps or not records.steps["measured"].any():
        return "no records of measured steps"
    return records.incomplete[0].split(": ", 1)[-1] if records.incomplete else ""


def _truncated(row: pd.Series, steps: Columns, dropped: int) -> dict[str, Any]:
    """Columns of a run that change if its first `dropped` measured steps are left out."""
    numbers, ends = _records(steps)
    start = int(numbers[np.searchsorted(ends, dropped) + 1])
    left_out = [*json.loads(row["left_out"]), (int(numbers[0]), start - 1)]
    before = steps["measured"]
    after = before & (steps["step"] >= start)
    lowest = after & (steps["rank"] == steps["rank"][before].min())
    measured_steps = int(steps["steps"][lowest].sum())
    measured_s = row["measured_s"] * _total(steps, "step_s", after) / _total(steps, "step_s", before)
    factor = _rate(steps, after) / _rate(steps, before)
    values = {
        "truncated_steps": dropped,
        "left_out": json.dumps(left_out),
        "measured_steps": measured_steps,
        "measured_s": measured_s,
        "step_s": measured_s / measured_steps,
        "samples_per_s": row["samples_per_s"] * factor,
    }
    if pd.notna(row["tokens_per_s"]):
        values["tokens_per_s"] = row["tokens_per_s"] * factor
    values |= {name: _mean(steps, name, after) for name in PHASES if pd.notna(row[name])}
    durations = recorded_step_s(Path(row["path"]), left_out, int(row["last_attempt"]))
    if durations.size:
        found = np.percentile(durations, list(_PERCENTILES.values()))
        values |= dict(zip(_PERCENTILES, found.tolist(), strict=True))
    return values


def _in_whole_records(repeats: Sequence[Columns], dropped: int) -> int:
    """The least number of measured steps, at least `dropped`, at which a record ends in every repeat: an
    aggregate is left out as a whole. All steps of the shortest repeat where there is none."""
    ends = [{*_records(steps)[1].tolist()} for steps in repeats]
    common = set.intersection(*ends)
    return min((end for end in common if end >= dropped), default=min(max(each) for each in ends))


def _records(steps: Columns) -> tuple[np.ndarray, np.ndarray]:
    """First step of each measured record of the lowest rank, and the number of measured steps to its end."""
    chosen = steps["measured"] & (steps["rank"] == steps["rank"][steps["measured"]].min())
    order = np.argsort(steps["step"][chosen])
    return steps["step"][chosen][order], np.cumsum(steps["steps"][chosen][order])


def _rate(steps: Columns, chosen: np.ndarray) -> float:
    """Samples per second, or steps per second where the records have no samples."""
    counted = "samples" if steps["samples"][chosen].any() else "steps"
    return _total(steps, counted, chosen) / _total(steps, "step_s", chosen)


def _total(steps: Columns, name: str, chosen: np.ndarray) -> float:
    return float(steps[name][chosen].sum(dtype=np.float64))


def _mean(steps: Columns, name: str, chosen: np.ndarray) -> float:
    """Mean seconds of a phase in a step, over the records that have it."""
    known = chosen & ~np.isnan(steps[name])
    return _total(steps, name, known) / max(1.0, _total(steps, "steps", known))


def common_warm_up(repeats: Sequence[Floats]) -> int:
    """Measured steps that all repeats of a configuration have to leave out; 0 without a longer warm-up."""
    return max((stationarity(step_s).warm_up for step_s in repeats), default=0)


def why_not_left_out(step_s: Floats, dropped: int) -> str:
    """The reason why the mean of a repeat without these steps cannot be published; empty if it can."""
    if step_s.size - dropped < 30:
        return "fewer than 30 measured steps would be left"
    left = stationarity(step_s[dropped:])
    return "" if left.publishable else "the steps after the warm-up are not stationary"
