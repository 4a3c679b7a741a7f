"""All runs in one table: figures of those that count, the reason of those that do not."""

from __future__ import annotations

from analysis.overlaps import Overlap
from analysis.read.run import Run
from analysis.report.run_records import run_figures
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
    if not study.runs:
        return None
    overlaps: dict[str, list[Overlap]] = {}
    for overlap in study.overlaps:
        for run in overlap.runs:
            overlaps.setdefault(str(run), []).append(overlap)
    rows = [_row(study, run, overlaps.get(run.path, [])) for run in study.runs]
    left = len(study.runs) - len(study.included)
    conclusion = f"{plural(len(study.included), 'run')} in the figures"
    conclusion += f", {left} left out, with the reason." if left else "."
    table = Table("runs", "Runs.", _COLUMNS, rows)
    return Section(
        "runs", "Runs", conclusion, key=f"{len(study.included)} of {len(study.runs)}", tables=[table]
    )


def _row(study: Study, run: Run, overlaps: list[Overlap]) -> list[Value]:
    values: dict[str, Value] = {"state": run.state, "note": run.note}
    if run.shape:
        values["nodes"] = run.shape[0]
    if run.included:
        values |= run_figures(run)
        if statistics := study.statistics.get(run.path):
            values["stationarity"] = statistics.stationarity.verdict
    if time := study.job_times.get(run.path):
        values |= {"goodput": time.goodput, "whole_s": time.whole_s}
    name = run.name if len(study.sweeps) == 1 else f"{run.sweep}/{run.name}"
    values |= {"run": RunLink(name, run.path), "overlap": _beside(run.path, overlaps)}
    return [values.get(column.name) for column in _COLUMNS]


def _beside(path: str, overlaps: list[Overlap]) -> str | None:
    """The run of the longest overlap with a run, where and how long, and how many more there are."""
    if not overlaps:
        return None
    other = next(run.name for run in overlaps[0].runs if str(run) != path)
    more = f" and {len(overlaps) - 1} more" if len(overlaps) > 1 else ""
    return f"{other}, {span(overlaps[0].seconds)} on {overlaps[0].hosts[0]}{more}"
