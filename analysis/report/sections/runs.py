"""The runs: figures of those that count, the reason of those that do not, scripts without telemetry, and
what is needed to reproduce them."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.read.run import Run
from analysis.read.run_table import column_value
from analysis.report.common import Column, Section, Study, item_table, run_columns, say
from analysis.units import binary_bytes, plural, span

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


def runs(study: Study) -> Section:
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


_MOST_FIGURES = 8
_HARDWARE = (
    Column("gpu_utilization", "GPU busy", "share", "utilization", get="hardware.gpu_utilization"),
    Column("gpu_idle_s", "GPU idle", "span", get="hardware.gpu_idle_s"),
    Column("gpu_memory_peak_bytes", "GPU memory", "B", "peak-memory", get="hardware.gpu_memory_peak_bytes"),
    Column("gpu_power_w", "power of a GPU", "W", get="hardware.gpu_power_w"),
    Column("gpu_energy_j", "energy of the GPUs", "J", get="hardware.gpu_energy_j"),
    Column("processors", "busy processors per rank", "number", "utilization", get="hardware.processors"),
)
_CODE = """\
from disttrain import LoopTelemetry
with LoopTelemetry(None, model, optimizer, steps=..., samples_per_step=...) as telemetry:
    for batch in telemetry.steps(loader):"""


def scripts(study: Study) -> Section | None:
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


_PROVENANCE = {
    "tags": "Tags",
    "user_note": "Note",
    "code_hash": "Code (hash)",
    "git_commit": "Commit",
    "command": "Command",
    "host": "Host",
    "device": "Device",
    "backend": "Backend",
    "torch": "torch",
    "python": "Python",
    "model": "Model",
    "parameters": "Parameters",
    "dataset": "Data",
    "dataset_version": "Data version",
    "dataset_sha256": "Data (SHA-256)",
    "strategy": "Strategy",
    "threads_per_rank": "Compute threads of a rank",
    "warmup_steps": "Warm-up steps",
    "comm_method": "Exposed communication by",
    "preflight": "Pre-flight",
    "created": "Planned",
    "updated": "Measured",
    "cluster": "Cluster",
    "processor": "Processor",
    "memory_bytes": "Memory of a node",
    "kernel": "Kernel",
}


def provenance(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Values of the properties of runs, by name."""
    properties = {}
    for column, name in _PROVENANCE.items():
        text = binary_bytes if column == "memory_bytes" else str
        known = {column_value(run, column) for run in runs} - {None}
        values = [text(value) for value in sorted(known)]
        if column in ("created", "updated") and len(values) > 2:
            values = [f"{values[0]} to {values[-1]}"]
        if column == "git_commit" and any(column_value(run, "git_dirty") for run in runs):
            values = [f"{value} with uncommitted changes (see run.json)" for value in values]
        if values:
            properties[name] = values
    return properties


def reproduction(study: Study) -> Section:
    """Empty without a run."""
    properties = provenance(study.included or study.runs)
    columns = [
        Column("property", get=lambda item: item[0]),
        Column("value", get=lambda item: "; ".join(item[1])),
    ]
    table = item_table("provenance", "Properties.", columns, properties.items())
    return Section("reproduction", "Reproduction", tables=[table])


SECTIONS = {220: runs, 4: scripts, 230: reproduction}
