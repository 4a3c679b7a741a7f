"""All runs in one table: figures of those that count, the reason of those that do not."""

from __future__ import annotations

from analysis.read.run_table import column_value
from analysis.report.common import Column, Section, Study, item_table, run_columns, say
from analysis.units import plural, span

ORDER = 220

_FIGURES = (
    Column("nodes", "nodes", "count"),
    Column("ranks_per_node", "ranks per node", "count"),
    Column("samples_per_s", "throughput", "samples/s", "throughput"),
    Column("step_s", "mean step", "s", "step-time"),
    Column("step_p50_s", "median", "s", "percentiles"),
    Column("step_p95_s", "p95", "s", "percentiles"),
    Column("step_p99_s", "p99", "s", "percentiles"),
    Column("measured_steps", "measured steps", "count"),
    Column("peak_memory_bytes", "peak memory", "B", "peak-memory"),
)


def build(study: Study) -> Section:
    """Empty without a run."""
    beside: dict[str, str] = {}
    for each in study.overlaps:  # the longest first
        for run, other in (each.runs, each.runs[::-1]):
            beside.setdefault(str(run), f"{other.name}, {span(each.seconds)} on {each.hosts[0]}")
    columns = [
        Column("run"),
        *run_columns(study)[1:],
        Column("state", get="run.state"),
        Column("note", get="run.note"),
        *_FIGURES,
        Column("stationarity", "steps are", "", "stationarity", get="steps.stationarity.verdict"),
        Column(
            "unseen_drift", "drift unseen", "share", "stationarity", get="steps.stationarity.unseen.drift"
        ),
        Column("unseen_jump", "jump unseen", "share", "stationarity", get="steps.stationarity.unseen.jump"),
        Column("goodput", "goodput", "share", "goodput", get="time.goodput"),
        Column("whole_s", "all time", "span", get="time.whole_s"),
        Column("overlap", "at the same time"),
    ]
    items = [
        {
            "run": run,
            "sweep": run.sweep,
            "steps": study.statistics.get(run.path),
            "time": study.job_times.get(run.path),
            "overlap": beside.get(run.path),
            **{each.name: column_value(run, each.name) for each in _FIGURES if run.included},
            "nodes": run.shape and run.shape.nodes,
        }
        for run in study.runs
    ]
    key = f"{len(study.included)} of {plural(len(items), 'run')} in the figures"
    changes = [each.stationarity.unseen for each in study.statistics.values() if each.stationarity.unseen]
    text = say("unseen", len(study.included), changes)
    return Section("runs", "Runs", text, key=key, tables=[item_table("runs", "Runs.", columns, items)])
