"""Runs of scripts without telemetry: state, time, hours, and the figures of their own `metrics.json`."""

from __future__ import annotations

from analysis.read.run import Run
from analysis.report.common import Column, Section, Study, item_table, run_columns, say

ORDER = 4
_MOST_FIGURES = 8
_HARDWARE = [
    Column(name, heading, unit, definition, get=f"hardware.{name}")  # type: ignore[arg-type]
    for name, heading, unit, definition in (
        ("gpu_utilization", "GPU busy", "share", "utilization"),
        ("gpu_idle_s", "GPU idle", "span", None),
        ("gpu_memory_peak_bytes", "GPU memory", "B", "peak-memory"),
        ("gpu_power_w", "power of a GPU", "W", None),
        ("gpu_energy_j", "energy of the GPUs", "J", None),
        ("processors", "busy processors per rank", "number", "utilization"),
    )
]
_CODE = """\
from disttrain import LoopTelemetry
with LoopTelemetry(None, model, optimizer, steps=..., samples_per_step=...) as telemetry:
    for batch in telemetry.steps(loader):"""


def build(study: Study) -> Section | None:
    """None without such a run; communication benchmarks have a section of their own."""
    runs = [run for run in study.runs if run.reported is not None and not run.folder.comm_bench.exists()]
    if not runs:
        return None
    figures = list(dict.fromkeys(name for run in runs for name in run.reported or {}))[:_MOST_FIGURES]
    columns = [
        *run_columns(study),
        Column("state"),
        Column("time_s", "time", "span", get=_elapsed_s),
        Column("hours", "used", "h", "device-hours", get="usage.hours"),
        Column("unit", get="usage.unit"),
        *_HARDWARE,
        *(Column(f"reported.{name}", name, "number") for name in figures),
    ]
    caption = "Scripts without telemetry, and figures of their metrics.json."
    tables, text = [item_table("scripts", caption, columns, runs)], say("scripts", len(runs))
    return Section("scripts", "Runs without step records", text, tables=tables, code=_CODE)


def _elapsed_s(run: Run) -> float | None:
    return sum(start.elapsed_s for start in run.usage.starts) if run.usage else None
