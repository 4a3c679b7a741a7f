"""All runs: those that count, those left out with the reason, and those that overlapped on one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.read.load import read_metrics
from analysis.report import overlap_text
from analysis.report.model import RunOverlap
from analysis.report.run_records import none_if_missing, run_overlaps
from analysis.report.section import Column, RunLink, Section, Table, Value
from analysis.study import Study
from analysis.units import plural

_RECORDED = "recorded_samples_per_s"
"""Column with the throughput of `metrics.json`, beside that of the report."""


def build(study: Study) -> Section | None:
    """None without a run."""
    if study.runs.empty:
        return None
    left = study.runs[~study.runs["included"]]
    tables = []
    if not left.empty:
        tables.append(_excluded(study, left.to_dict("records")))
    overlaps = run_overlaps(study.overlaps, study.included)
    paragraphs = [overlap_text.heading_line(overlaps)] if overlaps else []
    if overlaps:
        rows: list[list[Value]] = [list(row) for row in overlap_text.rows(overlaps, len(study.sweeps))]
        columns = [
            Column("run", "run"),
            Column("other", "and"),
            Column("nodes", "nodes"),
            Column("shared_s", "time", "span"),
            Column("gpus", "GPUs"),
        ]
        links = _both_runs(study, overlaps[: len(rows)])
        tables.append(Table("overlaps", "Runs at the same time on one node.", columns, rows, links))
    if not study.included.empty:
        tables.append(_included(study))
    count = plural(len(study.included), "run")
    conclusion = f"The figures use {count}" + (
        f"; {len(left)} {'is' if len(left) == 1 else 'are'} left out, with the reason." if len(left) else "."
    )
    return Section("runs", "Runs", conclusion, paragraphs=paragraphs, tables=tables)


def _both_runs(study: Study, overlaps: Sequence[RunOverlap]) -> list[list[RunLink]]:
    """Links to the two runs of each overlap."""
    links = {f"{row.sweep}/{row.run}": RunLink(row.run, row.path) for row in study.runs.itertuples()}
    return [[links[each.run], links[each.other]] for each in overlaps]


def _name(study: Study, row: dict[Any, Any]) -> RunLink:
    name = row["run"] if len(study.sweeps) == 1 else f"{row['sweep']}/{row['run']}"
    return RunLink(name, row["path"])


def _excluded(study: Study, rows: list[dict[Any, Any]]) -> Table:
    return Table(
        "excluded_runs",
        "Runs left out, with the reason.",
        [Column("run", "run"), Column("state", "state"), Column("reason", "reason")],
        [[_name(study, row), row["state"], row["note"]] for row in rows],
    )


def _warm_up_columns(study: Study) -> list[Column]:
    """Steps that only the report counts as warm-up, and the throughput with them, where a run has some."""
    if not (study.included["truncated_steps"].fillna(0) > 0).any():
        return []
    return [
        Column("truncated_steps", "further warm-up", "count"),
        Column(_RECORDED, "throughput in status", "samples/s"),
    ]


def _value(row: dict[Any, Any], name: str) -> Value:
    if name != _RECORDED:
        return none_if_missing(row[name])
    metrics, _ = read_metrics(row["path"])
    return None if metrics is None else metrics.samples_per_s


def _included(study: Study) -> Table:
    columns = [
        Column("nodes", "nodes", "count"),
        Column("ranks_per_node", "ranks per node", "count"),
        Column("samples_per_s", "throughput", "samples/s", "throughput"),
        Column("step_s", "mean step", "s", "step-time"),
        Column("step_p50_s", "median", "s", "percentiles"),
        Column("step_p95_s", "p95", "s", "percentiles"),
        Column("step_p99_s", "p99", "s", "percentiles"),
        *_warm_up_columns(study),
        Column("measured_steps", "measured steps", "count"),
        Column("peak_memory_bytes", "peak memory", "B", "peak-memory"),
    ]
    of_job = [Column("goodput", "goodput", "share", "goodput"), Column("whole_s", "all time", "span")]
    rows: list[list[Value]] = [
        [_name(study, row), *(_value(row, column.name) for column in columns), *_of_job(study, row)]
        for row in study.included.to_dict("records")
    ]
    return Table("runs", "Runs that the figures use.", [Column("run", "run"), *columns, *of_job], rows)


def _of_job(study: Study, row: dict[Any, Any]) -> list[Value]:
    time = study.job_times.get(row["path"])
    return [None, None] if time is None else [time.goodput, time.whole_s]
