"""POP factors by size, as a product and as parts of the loss."""

from __future__ import annotations

import math

import pandas as pd

from analysis.efficiency import Curve, Point
from analysis.losses.pop import (
    EFFICIENCY,
    FACTORS,
    SCALING,
    RankSteps,
    against_base,
    losses,
    mean_factors,
    over_repeats,
    rank_steps,
)
from analysis.report import common
from analysis.report.section import Column, RunLink, Section, Table, Value
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import percent

NAMES = {
    "persistent_balance": "balance, persistent",
    "transient_balance": "balance, transient",
    "host": "host",
    "transfer": "transfer",
    SCALING: "computation scaling",
}


def build(study: Study) -> Section | None:
    """None if no size has the step records of all its ranks."""
    steps = study.frames.steps
    by_run = dict(list(steps[steps["measured"]].groupby("run", observed=True)))
    rows: list[list[Value]] = []
    parts: list[list[Value]] = []
    sources: list[list[RunLink]] = []
    part_sources: list[list[RunLink]] = []
    smallest: tuple[float, str, str] | None = None
    for curve in study.curves:
        base = [] if curve.base is None else _repeats(study, curve, curve.base, by_run)
        for point in curve.points:
            runs = _repeats(study, curve, point, by_run)
            if not runs:
                continue
            size = common.size_values(study, curve, point)
            rows.append([*size, *(common.of_steps(point, value) for value in over_repeats(runs).values())])
            sources.append(common.sources(study, curve, point))
            for name, value in mean_factors(runs).items():
                if point.world_size > 1 and (smallest is None or value < smallest[0]):
                    smallest = (value, name, common.point_name(study, curve, point))
            if base and curve.base is not None and point is not curve.base:
                ratios = against_base(runs, base, _work(point, curve.base))
                lost = losses(ratios)
                parts.append([*size, math.prod(ratios.values()), *(lost[name] for name in NAMES)])
                part_sources.append(common.sources(study, curve, point))
    if smallest is None:
        return None
    value, name, place = smallest
    tables = [_factor_table(study, rows, sources)]
    tables += [_loss_table(study, parts, part_sources)] if parts else []
    return Section(
        "pop",
        "POP factors",
        f"The smallest factor is {NAMES[name]}, {percent(value)} at {place}.",
        paragraphs=[
            "Each factor is 100 % without loss; their product is the parallel efficiency. Useful time is "
            "compute and optimizer, and a step has one synchronization. Balance compares useful "
            "times with the longest one, not with the step. Waiting (see Stragglers) is measured in "
            "communication instead, above an estimated noise floor, and also counts late hosts. Here they "
            "are part of host, and the floor is part of transfer."
        ],
        tables=tables,
    )


def _repeats(study: Study, curve: Curve, point: Point, by_run: dict[str, pd.DataFrame]) -> list[RankSteps]:
    """Rank steps of the repeats of a point; empty if one of them has none, or for stages of a pipeline, whose
    work differs."""
    found = []
    for row in study.runs_of(curve, point):
        if row["strategy"] == "pipeline":
            return []
        steps = by_run.get(row["path"])
        run = None if steps is None else rank_steps(steps)
        if run is None or len(run.useful_s) != point.world_size:
            return []
        found.append(run)
    return found


def _work(point: Point, base: Point) -> float:
    return (point.global_batch_size / point.devices) / (base.global_batch_size / base.devices)


def _factor_table(study: Study, rows: list[list[Value]], sources: list[list[RunLink]]) -> Table:
    columns = [
        *common.size_columns(study),
        Column(EFFICIENCY, "parallel efficiency", "share", "pop-factors"),
        *(Column(name, NAMES[name], "share", "pop-factors") for name in FACTORS),
    ]
    estimates = (value for row in rows for value in row if isinstance(value, Estimate))
    caption = f"Factors of the parallel efficiency, with {common.interval_basis(estimates)}."
    return Table("pop_factors", caption, columns, rows, sources)


def _loss_table(study: Study, rows: list[list[Value]], sources: list[list[RunLink]]) -> Table:
    columns = [
        *common.size_columns(study),
        Column("efficiency", "efficiency of these steps", "share", "efficiency"),
        *(Column(name, NAMES[name], "points", "pop-factors") for name in NAMES),
    ]
    caption = (
        "Percentage points of efficiency lost to each factor against the base: they sum exactly to 100 % "
        "minus the efficiency. Negative parts are gains. The parts have no intervals."
    )
    return Table("pop_losses", caption, columns, rows, sources)
