"""Cost: one training at each size in time, device-hours, money and energy, and what the runs used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import methodcaller

from analysis.draw.style import value_axis
from analysis.report.common import (
    Column,
    Figure,
    Section,
    Study,
    Table,
    item_table,
    place_of,
    points_figure,
    run_columns,
    say,
    size_table,
)
from analysis.results.cost import SizeCost, size_costs, trained_alike
from analysis.units import Unit, number, scale, span

ORDER = 180

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


def build(study: Study) -> Section | None:
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
    meets = [cost.meets(study.deadline_s or math.inf) for cost in costs]
    in_time = [
        cost
        for cost, answer in zip(costs, meets, strict=True)
        if answer == "yes" or (answer == "cannot tell" and not cost.settled)
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
