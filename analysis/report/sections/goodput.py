"""Goodput: where every second of the runs went, from submission to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from analysis.report.common import Column, Section, Study, bars_figure, places, say, size_table
from analysis.results.goodput import JobClass, JobTime
from analysis.stats.estimates import Estimate, ratio_of_means, share_mean
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
_TITLE = "Goodput of the jobs"


def _mean_s(*names: JobClass) -> Callable[[Sequence[JobTime]], Estimate | None]:
    """Mean over repeats of the time in these classes; None without any."""

    def mean(times: Sequence[JobTime]) -> Estimate | None:
        seconds = [sum(time.seconds[name] for name in names) for time in times]
        return share_mean(seconds) if any(seconds) else None

    return mean


def _goodput(times: Sequence[JobTime]) -> Estimate:
    return ratio_of_means([time.seconds["training"] for time in times], [time.whole_s for time in times])


_COLUMNS = (
    Column("goodput", "goodput", "share", "goodput", get=_goodput),
    Column("whole_s", "all time", "span", get=_mean_s(*_CLASSES)),
    *(
        Column(f"{name}_s", label, "span", "goodput", get=_mean_s(name), colour=colour)
        for name, (label, colour) in _CLASSES.items()
    ),
)


def build(study: Study) -> Section | None:
    """None if the starts of no run are on record."""
    times = study.job_times
    total = {name: sum(time.seconds[name] for time in times.values()) for name in _CLASSES}
    whole_s = sum(total.values())
    if not whole_s:
        return None
    held_s = sum(time.devices * (time.whole_s - time.seconds["queue"]) for time in times.values())
    trained_s = sum(time.devices * time.seconds["training"] for time in times.values())
    share, held = total["training"] / whole_s, trained_s / held_s if held_s else 0.0
    worst_s, worst = max((total[name], name) for name in total if name != "training")
    unplaced = sum(not time.placed for time in times.values())
    items = [
        (place, known)
        for place in places(study)
        if (known := [times[run.path] for run in place.point.runs if run.path in times])
    ]
    caption = "Time of a finished run by size, means over repeats."
    table = size_table(study, "goodput", caption, _COLUMNS, items)
    return Section(
        "goodput",
        _TITLE,
        say("goodput", share, held, _CLASSES[worst][0], worst_s / whole_s, unplaced),
        key=percent(share),
        tables=[table],
        figures=bars_figure(study, table, _TITLE, "time of a run"),
    )
