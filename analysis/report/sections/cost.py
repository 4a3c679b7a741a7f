"""Cost of one training at each size, what the runs used, and goodput: where every second of the runs went."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import methodcaller

from analysis.draw.style import value_axis
from analysis.report.common import (
    Column,
    Figure,
    Section,
    Study,
    Table,
    bars_figure,
    item_table,
    place_of,
    places,
    points_figure,
    run_columns,
    say,
    size_table,
)
from analysis.results.cost import SizeCost, size_costs, trained_alike
from analysis.results.goodput import JobClass, JobTime
from analysis.stats.estimates import Estimate, ratio_of_means, share_mean
from analysis.units import Unit, number, percent, scale, span

_USED = [
    Column("state"),
    Column("attempts", "attempts", "count", get="starts"),
    Column("hours", "used", "h", "device-hours", get="usage.hours"),
    Column("unit", get="usage.unit"),
    Column("hours_bound", "limit per start", "h", "device-hours"),
    Column("queue_wait_s", "queue time", "span", get="usage.queue_wait_s"),
    Column("source", get="usage.source"),
]
"""Use of a run over all attempts, finished or not."""


def cost(study: Study) -> Section | None:
    """None if no run has started."""
    used = [run for run in study.runs if run.usage]
    samples = study.samples or 0.0
    if study.curves and not samples:  # those of the planned steps
        base = study.curves[0].base or study.curves[0].points[0]
        samples = float(base.metrics[0].steps_total * base.global_batch_size)
    costs = size_costs(study.curves, samples, study.prices)
    if not used and not costs:
        return None
    kinds = [[cost for cost in costs if cost.curve.emulated is emulated] for emulated in (False, True)]
    training = [_training(study, kind, samples) for kind in kinds if kind]
    caption = "Use of each started run over all attempts, finished or not."
    return Section(
        "cost",
        "Cost",
        " ".join(filter(None, [*training, say("usage", used)])),
        tables=[
            _costs(study, costs, samples),
            item_table("run_costs", caption, [*run_columns(study), *_USED], used),
        ],
        figures=[_figure(study, costs)] if costs else [],
    )


def _training(study: Study, costs: Sequence[SizeCost], samples: float) -> str:
    """Cheapest and fastest size, or the cheapest within the deadline, of real or of emulated runs; of sizes
    that are not settled, those that may be."""
    deadline_s = study.deadline_s or math.inf
    in_time = [
        cost
        for cost in costs
        if cost.meets(deadline_s) == "yes" or (cost.meets(deadline_s) == "cannot tell" and not cost.settled)
    ]
    cheapest, fastest = (
        min(in_time, key=methodcaller("rank", name), default=None) for name in ("spent", "time_s")
    )
    return say("training_cost", study, costs, samples, trained_alike(costs), cheapest, fastest)


def _costs(study: Study, costs: Sequence[SizeCost], samples: float) -> Table:
    deadline_s = study.deadline_s
    columns = [
        Column("time_s", "time", "span", "training-cost"),
        Column("device_hours", "device-hours", "h", "training-cost"),
        Column("money", study.prices.currency or "money", "currency", "training-cost"),
        Column("joules_per_sample", "GPU energy", "J/sample", "energy"),
        Column("grams_per_sample", "CO2 / sample", "g", "energy"),
        Column("pareto", "Pareto-optimal"),
        Column("meets", "within the deadline", get=lambda cost: deadline_s and cost.meets(deadline_s)),
    ]
    caption = f"One training on {number(samples)} samples, its steps alone."
    items = [(place_of(study, cost.point), cost) for cost in costs]
    return size_table(study, "training_cost", caption, columns, items)


def _figure(study: Study, costs: Sequence[SizeCost]) -> Figure:
    size_s, suffix = scale("span", max(cost.time_s.value for cost in costs))
    unit: Unit = "currency" if costs[0].spent is costs[0].money else "h"
    rows = []
    for cost in costs:
        size, time_s = cost.curve.name(cost.point), cost.time_s.value
        label = size if cost.curve is study.leading_curve else ""
        row = cost.curve.label, f"{size}, {span(time_s)}", time_s / size_s, cost.spent, label, not cost.pareto
        rows.append(row)
    return points_figure(
        study,
        "training_cost",
        "Cost against time, pale where not Pareto-optimal",
        rows,
        unit,
        value_axis(f"time of the training ({suffix.strip()})", 0.0, max(row[2] for row in rows)),
        f"cost ({study.prices.currency})" if unit == "currency" else "device-hours",
        levels=[0.0],
    )


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


_GOODPUT = (
    Column("goodput", "goodput", "share", "goodput", get=_goodput),
    Column("whole_s", "all time", "span", get=_mean_s(*_CLASSES)),
    *(
        Column(f"{name}_s", label, "span", "goodput", get=_mean_s(name), colour=colour)
        for name, (label, colour) in _CLASSES.items()
    ),
)


def goodput(study: Study) -> Section | None:
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
    table = size_table(study, "goodput", caption, _GOODPUT, items)
    return Section(
        "goodput",
        _TITLE,
        say("goodput", share, held, _CLASSES[worst][0], worst_s / whole_s, unplaced),
        key=percent(share),
        tables=[table],
        figures=bars_figure(study, table, _TITLE, "time of a run"),
    )


SECTIONS = {180: cost, 190: goodput}
