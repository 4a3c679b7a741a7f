"""Goodput: where every second of the runs went, from submission to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis.report.common import all_points, kept, point_table, stacked_figure
from analysis.report.section import Column, Section
from analysis.report.sentences import say
from analysis.results.goodput import JobClass
from analysis.stats.estimates import Estimate, ratio_of_means, share_mean
from analysis.study import Study
from analysis.units import percent

ORDER = 190

_CLASSES: dict[JobClass, tuple[str, str]] = {
    "queue": ("queue", "faint"),
    "start_up": ("start-up", "c4"),
    "restart": ("restart", "c6"),
    "training": ("training", "c0"),
    "checkpoint": ("checkpoint", "c3"),
    "rework": ("repeated work", "c1"),
    "evaluation": ("validation", "c5"),
    "other": ("other", "other"),
}
"""Name and colour of each class."""


def build(study: Study) -> Section | None:
    """None if the starts of no run are on record."""
    times = study.job_times
    total = {name: sum(time.seconds[name] for time in times.values()) for name in _CLASSES}
    whole_s = sum(total.values())
    if not whole_s:
        return None
    held_s = sum(time.devices * (time.whole_s - time.seconds["queue"]) for time in times.values())
    trained_s = sum(time.devices * time.seconds["training"] for time in times.values())
    worst = max((name for name in total if name != "training"), key=lambda name: total[name])
    conclusion = say(
        "goodput",
        share=total["training"] / whole_s,
        held=trained_s / held_s if held_s else 0.0,
        worst=_CLASSES[worst][0],
        worst_share=total[worst] / whole_s,
        unplaced=sum(not time.placed for time in times.values()),
    )
    columns = [
        Column("goodput", "goodput", "share", "goodput", get=_goodput),
        Column("whole_s", "all time", "span", get=_mean_s(*_CLASSES)),
        *(
            Column(f"{name}_s", label, "span", "goodput", get=_mean_s(name), colour=colour)
            for name, (label, colour) in _CLASSES.items()
        ),
    ]
    items = [
        (curve, point, known)
        for curve, point in all_points(study)
        if (known := [times[run.path] for run in point.runs if run.path in times])
    ]
    title, caption = "Goodput of the jobs", "Time of a finished run by size, means over repeats."
    return Section(
        "goodput",
        title,
        conclusion,
        key=percent(total["training"] / whole_s),
        tables=kept(point_table(study, "goodput", caption, columns, items)),
        figures=kept(stacked_figure(study, "goodput", title, "time of a run", columns, items)),
    )


def _mean_s(*names: JobClass) -> Callable[[Any], Estimate | None]:
    """Mean over repeats of the time in these classes; None without any."""

    def mean(times: Any) -> Estimate | None:
        seconds = [sum(time.seconds[name] for name in names) for time in times]
        return share_mean(seconds) if any(seconds) else None

    return mean


def _goodput(times: Any) -> Estimate:
    return ratio_of_means([time.seconds["training"] for time in times], [time.whole_s for time in times])
