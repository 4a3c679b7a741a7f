"""All runs in one table: figures of those that count, the reason of those that do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.overlaps import Overlap
from analysis.report.run_records import none_if_missing
from analysis.report.section import Column, RunLink, Section, Table, Value
from analysis.study import Study
from analysis.units import plural, span

ORDER = 220

_COLUMNS = (
    Column("run", "run"),
    Column("state", "state"),
    Column("nodes", "nodes", "count"),
    Column("ranks_per_node", "ranks per node", "count"),
    Column("samples_per_s", "throughput", "samples/s", "throughput"),
    Column("step_s", "mean step", "s", "step-time"),
    Column("step_p50_s", "median", "s", "percentiles"),
    Column("step_p95_s", "p95", "s", "percentiles"),
    Column("step_p99_s", "p99", "s", "percentiles"),
    Column("measured_steps", "measured steps", "count"),
    Column("stationarity", "steps are", "", "stationarity"),
    Column("peak_memory_bytes", "peak memory", "B", "peak-memory"),
    Column("goodput", "goodput", "share", "goodput"),
    Column("whole_s", "all time", "span"),
    Column("overlap", "at the same time"),
    Column("note", "note"),
)


def build(study: Study) -> Section | None:
    """None without a run."""
    if study.runs.empty:
        return None
    overlaps: dict[str, list[Overlap]] = {}
    for overlap in study.overlaps:
        for run in overlap.runs:
            overlaps.setdefault(str(run), []).append(overlap)
    rows = [_row(study, row, overlaps.get(row["path"], [])) for row in study.rows]
    left = len(study.runs) - len(study.included)
    conclusion = f"{plural(len(study.included), 'run')} in the figures"
    conclusion += f", {left} left out, with the reason." if left else "."
    table = Table("runs", "Runs.", _COLUMNS, rows)
    return Section(
        "runs", "Runs", conclusion, key=f"{len(study.included)} of {len(study.runs)}", tables=[table]
    )


def _row(study: Study, row: Mapping[Any, Any], overlaps: list[Overlap]) -> list[Value]:
    name = row["run"] if len(study.sweeps) == 1 else f"{row['sweep']}/{row['run']}"
    values = {column.name: none_if_missing(row.get(column.name)) for column in _COLUMNS}
    if not row["included"]:
        values = {column: value for column, value in values.items() if column in ("state", "nodes", "note")}
    elif statistics := study.statistics.get(row["path"]):
        values["stationarity"] = statistics.stationarity.verdict
    if time := study.job_times.get(row["path"]):
        values |= {"goodput": time.goodput, "whole_s": time.whole_s}
    values |= {"run": RunLink(name, row["path"]), "overlap": _beside(row["path"], overlaps)}
    return [values.get(column.name) for column in _COLUMNS]


def _beside(path: str, overlaps: list[Overlap]) -> str | None:
    """The run of the longest overlap with a run, where and how long, and how many more there are."""
    if not overlaps:
        return None
    other = next(run.name for run in overlaps[0].runs if str(run) != path)
    more = f" and {len(overlaps) - 1} more" if len(overlaps) > 1 else ""
    return f"{other}, {span(overlaps[0].seconds)} on {overlaps[0].hosts[0]}{more}"
