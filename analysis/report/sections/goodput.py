"""Goodput: where every second of the runs went, from submission to end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from analysis.draw.bars import Row, bars, stacked
from analysis.draw.style import Axis, LegendItem
from analysis.report.common import all_points, size_columns, size_values, sources
from analysis.report.section import Column, Figure, RunLink, Section, Table, Value
from analysis.results.goodput import CLASSES, JobClass, JobTime, job_time
from analysis.stats.estimates import Estimate, share_mean
from analysis.study import Study
from analysis.units import percent, plural, span

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
    found = job_times(study)
    if not found:
        return None
    total = {name: sum(time.seconds[name] for _, time in found) for name in CLASSES}
    whole_s = sum(total.values())
    if not whole_s:
        return None
    held_s = sum(sum(time.device_seconds.values()) for _, time in found)
    trained_s = sum(time.device_seconds["training"] for _, time in found)
    worst = max((name for name in CLASSES if name != "training"), key=lambda name: total[name])
    held = percent(trained_s / held_s if held_s else 0.0)
    conclusion = (
        f"Goodput is {percent(total['training'] / whole_s)} of the time of the runs, and {held} of the "
        f"device-hours that they held; the largest other class is {NAMES[worst]}, "
        f"{percent(total[worst] / whole_s)} of the time."
    )
    notes = []
    if unplaced := sum(not time.placed for _, time in found):
        notes.append(
            f"The steps of {plural(unplaced, 'run')} have no recorded position in time; the last step is "
            "taken to end with its attempt, so that the end of a job counts as start-up."
        )
    return Section(
        "goodput",
        "Goodput of the jobs",
        conclusion,
        paragraphs=notes,
        tables=[*_by_size(study, found), _table(found)],
        figures=[_figure(study, total, whole_s, len(found))],
    )


def job_times(study: Study) -> list[tuple[RunLink, JobTime]]:
    """Time of each started run, excluded ones too, in the order of the table of runs."""
    frames, found = study.frames, []
    steps = dict(list(frames.steps[frames.steps["rank"] == 0].groupby("run", observed=True)))
    samples = dict(list(frames.hardware[frames.hardware["rank"] == 0].groupby("run", observed=True)))
    for row in study.runs.itertuples():
        own, hardware = steps.get(row.path, frames.steps.iloc[:0]), samples.get(row.path)
        time = job_time(row.path, own, frames.hardware.iloc[:0] if hardware is None else hardware)
        if time is not None and row.state != "running":
            name = row.run if len(study.sweeps) == 1 else f"{row.sweep}/{row.run}"
            found.append((RunLink(name, row.path), time))
    return found


def _by_size(study: Study, found: list[tuple[RunLink, JobTime]]) -> list[Table]:
    """Means over the repeats of each size; no table without a finished run."""
    times = {link.path: time for link, time in found}
    present = [name for name in CLASSES if any(time.seconds[name] for time in times.values())]
    rows: list[list[Value]] = []
    links = []
    for curve, point in all_points(study):
        repeats = [link for link in sources(study, curve, point) if link.path in times]
        if not repeats:
            continue
        own = [times[link.path] for link in repeats]
        means = [share_mean([time.seconds[name] for time in own]) for name in present]
        rows.append(
            [
                *size_values(study, curve, point),
                _goodput(own),
                share_mean([time.whole_s for time in own]),
                *means,
            ]
        )
        links.append(repeats)
    columns = [
        *size_columns(study),
        Column("goodput", "goodput", "share", "goodput"),
        Column("whole_s", "all time", "span"),
        *(Column(f"{name}_s", NAMES[name], "span", "goodput") for name in present),
    ]
    caption = "Time of a finished run by size, means over repeats; the classes sum to all time."
    if len(links) == len(found) and all(len(repeats) == 1 for repeats in links):
        return []  # the table of runs has the same rows
    return [Table("goodput_by_size", caption, columns, rows, links)] if rows else []


def _goodput(repeats: Sequence[JobTime]) -> Estimate:
    """Ratio of sums over repeats, with the interval of their mean."""
    value = sum(time.seconds["training"] for time in repeats) / sum(time.whole_s for time in repeats)
    mean = share_mean([time.goodput for time in repeats])
    return mean.scaled(value / mean.value) if mean.value else mean


def _table(found: list[tuple[RunLink, JobTime]]) -> Table:
    rows: list[list[Value]] = [
        [link, time.devices, time.goodput, time.whole_s, *(time.seconds[name] for name in CLASSES)]
        for link, time in found
    ]
    columns = [
        Column("run", "run"),
        Column("devices", "devices", "count"),
        Column("goodput", "goodput", "share", "goodput"),
        Column("whole_s", "all time", "span"),
        *(Column(f"{name}_s", NAMES[name], "span", "goodput") for name in CLASSES),
    ]
    caption = (
        "Time of each run over all attempts; every second is in one class. A row is one run (n=1), a sum of "
        "recorded times."
    )
    return Table("goodput", caption, columns, rows)


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
