"""Runs of scripts without telemetry: state, time, hours, and the figures of their own `metrics.json`."""

from __future__ import annotations

from analysis.report.section import Column, RunLink, Section, Table, Value
from analysis.report.sentences import say
from analysis.study import Study

ORDER = 4
_MOST_FIGURES = 8
_CODE = """\
from disttrain.telemetry.loop import LoopTelemetry
with LoopTelemetry(None, model, optimizer, steps=..., samples_per_step=...) as telemetry:
    for batch in telemetry.steps(loader):"""


def build(study: Study) -> Section | None:
    """None without such a run; communication benchmarks have a section of their own."""
    scripts = [run for run in study.runs if run.reported is not None and not run.folder.comm_bench.exists()]
    if not scripts:
        return None
    figures = list(dict.fromkeys(name for run in scripts for name in run.reported or {}))[:_MOST_FIGURES]
    rows: list[list[Value]] = []
    for run in scripts:
        name = run.name if len(study.sweeps) == 1 else f"{run.sweep}/{run.name}"
        used = run.usage
        spent = [sum(start.elapsed_s for start in used.starts), used.hours, used.unit] if used else [None] * 3
        reported = [(run.reported or {}).get(figure) for figure in figures]
        rows.append([RunLink(name, run.path), run.state, *spent, *reported])
    columns = [
        Column("run", "run"),
        Column("state", "state"),
        Column("time_s", "time", "span"),
        Column("hours", "used", "h", "device-hours"),
        Column("unit", "unit"),
        *(Column(f"reported.{figure}", figure, "number") for figure in figures),
    ]
    table = Table("scripts", "Scripts without telemetry, and figures of their metrics.json.", columns, rows)
    return Section(
        "scripts", "Runs without step records", say("scripts", len(rows)), tables=[table], code=_CODE
    )
