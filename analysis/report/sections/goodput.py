"""Goodput: where every second of the runs went, from submission to end."""

from __future__ import annotations

from functools import partial

from analysis.draw.bars import Row, bars, stacked
from analysis.draw.style import Axis, LegendItem
from analysis.report.common import all_points, size_table
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.sentences import say
from analysis.results.curves import Curve, Point
from analysis.results.goodput import CLASSES, JobClass
from analysis.stats.estimates import ratio_of_means, share_mean
from analysis.study import Study
from analysis.units import percent, span

ORDER = 190

NAMES: dict[JobClass, str] = {
    "queue": "queue",
    "start_up": "start-up",
    "restart": "restart",
    "training": "training",
    "checkpoint": "checkpoint",
    "rework": "repeated work",
    "evaluation": "validation",
    "other": "other",
}
CLASS_COLOURS: dict[JobClass, str] = {
    "queue": "faint",
    "start_up": "c4",
    "restart": "c6",
    "training": "c0",
    "checkpoint": "c3",
    "rework": "c1",
    "evaluation": "c5",
    "other": "other",
}
"""Colour of each class."""


def build(study: Study) -> Section | None:
    """None if the starts of no run are on record."""
    times = [*study.job_times.values()]
    total = {name: sum(time.seconds[name] for time in times) for name in CLASSES}
    whole_s = sum(total.values())
    if not whole_s:
        return None
    held_s = sum(sum(time.device_seconds.values()) for time in times)
    trained_s = sum(time.device_seconds["training"] for time in times)
    worst = max((name for name in CLASSES if name != "training"), key=lambda name: total[name])
    conclusion = say(
        "goodput",
        share=total["training"] / whole_s,
        held=trained_s / held_s if held_s else 0.0,
        worst=NAMES[worst],
        worst_share=total[worst] / whole_s,
        unplaced=sum(not time.placed for time in times),
    )
    return Section(
        "goodput",
        "Goodput of the jobs",
        conclusion,
        key=percent(total["training"] / whole_s),
        tables=_by_size(study),
        figures=[_figure(study, total, whole_s, len(times))],
    )


def _by_size(study: Study) -> list[Table]:
    """Means over the repeats of each size; no table without a finished run."""
    present = [name for name in CLASSES if any(time.seconds[name] for time in study.job_times.values())]
    rows: list[tuple[Curve, Point, list[Value]]] = []
    for curve, point in all_points(study):
        if times := [study.job_times[run.path] for run in point.runs if run.path in study.job_times]:
            whole_s = [time.whole_s for time in times]
            goodput = ratio_of_means([time.seconds["training"] for time in times], whole_s)
            means = [share_mean([time.seconds[name] for time in times]) for name in present]
            rows.append((curve, point, [goodput, share_mean(whole_s), *means]))
    columns = [
        Column("goodput", "goodput", "share", "goodput"),
        Column("whole_s", "all time", "span"),
        *(Column(f"{name}_s", NAMES[name], "span", "goodput") for name in present),
    ]
    caption = "Time of a finished run by size, means over repeats."
    return [size_table(study, "goodput", caption, columns, rows)] if rows else []


def _figure(study: Study, total: dict[JobClass, float], whole_s: float, runs: int) -> Figure:
    present = [name for name in CLASSES if total[name] > 0]
    parts = [
        (100 * total[name] / whole_s, CLASS_COLOURS[name], f"{NAMES[name]} {span(total[name])}")
        for name in present
    ]
    description = "Share of all time of the runs: " + ", ".join(
        f"{NAMES[name]} {percent(total[name] / whole_s)}" for name in present
    )
    drawing = partial(
        bars,
        [Row("all runs", stacked(parts), span(whole_s))],
        Axis("share of all time (%)", 0.0, 100.0, ticks=[0, 25, 50, 75, 100]),
        [LegendItem(NAMES[name], CLASS_COLOURS[name]) for name in present],
        emulated=study.emulated,
    )
    return Figure("goodput", "Goodput of the jobs", drawing, description, data="goodput")
