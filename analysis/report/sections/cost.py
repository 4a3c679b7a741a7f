"""Cost of the runs: device-hours and queue time of all attempts."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.read.differences import run_config
from analysis.report.model import RunCost
from analysis.report.run_records import run_costs
from analysis.report.section import Column, RunLink, Section, Table, Value
from analysis.study import Study
from analysis.units import number, plural, span


def build(study: Study) -> Section | None:
    """None if no run has started."""
    rows = run_costs(study.runs)
    if not rows:
        return None
    lines = cost_lines(rows, len(study.sweeps))
    paths = {(row.sweep, row.run): row.path for row in study.runs.itertuples()}
    values: list[list[Value]] = [
        [
            RunLink(_name(study, row), paths[row.sweep, row.run]),
            row.state,
            row.attempts,
            row.hours,
            row.unit,
            row.hours_bound,
            row.queue_wait_s,
            row.source,
        ]
        for row in rows
    ]
    table = Table(
        "run_costs",
        "Use of each started run over all attempts, finished or not.",
        [
            Column("run", "run"),
            Column("state", "state"),
            Column("attempts", "attempts", "count"),
            Column("hours", "used", "h", "device-hours"),
            Column("unit", "unit"),
            Column("hours_bound", "limit per start", "h", "device-hours"),
            Column("queue_wait_s", "queue time", "span"),
            Column("source", "source"),
        ],
        values,
    )
    first, rest = (lines[0], []) if len(lines) == 1 else ("", lines)
    return Section(
        "cost", "Cost of the runs", first, paragraphs=[*rest, *_unused_gpus(study, rows)], tables=[table]
    )


def _unused_gpus(study: Study, rows: Sequence[RunCost]) -> list[str]:
    """A sentence on jobs that held GPUs while their ranks ran on processors; empty without any."""
    known = study.runs[study.runs["device"].notna()]  # a run that failed at its start has no device
    paths = {(row.sweep, row.run): row.path for row in known.itertuples() if row.device == "cpu"}
    held = [
        run_config({"path": paths[row.sweep, row.run]}).get("resources.gpus_per_node")
        for row in rows
        if row.unit == "GPU-hours" and (row.sweep, row.run) in paths
    ]
    if not held:
        return []
    counts = sorted({count for count in held if isinstance(count, int)})
    gpus = f"{plural(counts[0], 'GPU')} a node" if len(counts) == 1 else "GPUs"
    return [
        f"The jobs of {plural(len(held), 'run')} requested {gpus} from Slurm, although their ranks ran on "
        "processors: the hours are those of the GPUs that they held."
    ]


def _name(study: Study, row: RunCost) -> str:
    return row.run if len(study.sweeps) == 1 else f"{row.sweep}/{row.run}"


def cost_lines(rows: Sequence[RunCost], sweeps: int = 1) -> list[str]:
    """GPU-hours and queue time of each sweep, and the hours that its time limits allow; one line a sweep.

    Each line names its sweep if the report covers several `sweeps`.
    """
    lines = []
    for sweep in dict.fromkeys(row.sweep for row in rows):
        line = _cost_line([row for row in rows if row.sweep == sweep])
        lines.append(f"{sweep}: {line}" if sweeps > 1 else line)
    return lines


def _cost_line(rows: Sequence[RunCost]) -> str:
    sums = []
    for unit in sorted({row.unit for row in rows}):
        own = [row for row in rows if row.unit == unit]
        bounds = [row.hours_bound for row in own]
        bound = sum(value for value in bounds if value is not None)
        limit = "" if None in bounds else f", of {number(bound)} that one start of each run may use"
        sums.append(f"{number(sum(row.hours for row in own))} {unit}{limit}")
    starts = f"{plural(sum(row.attempts for row in rows), 'attempt')} of {plural(len(rows), 'run')}"
    waits = [row.queue_wait_s for row in rows if row.queue_wait_s is not None]
    queue = f", {span(sum(waits))} in queues" if waits else ""
    by = {"sacct": "Slurm's accounting", "timestamps": "the attempts' own times"}
    sources = " and ".join(by[name] for name in sorted({row.source for row in rows}))
    return f"{'; '.join(sums)}. {starts}{queue}; by {sources}."
