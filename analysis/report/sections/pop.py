"""POP factors by size, whose product is the parallel efficiency."""

from __future__ import annotations

from analysis.report import common
from analysis.report.section import Column, Section, Value
from analysis.report.sentences import say
from analysis.results.curves import Curve, Point
from analysis.results.pop import (
    EFFICIENCY,
    FACTORS,
    SCALING,
    UsefulTime,
    computation_scaling,
    over_repeats,
    useful_time,
)
from analysis.study import Study
from analysis.units import percent

ORDER = 210

NAMES = {
    EFFICIENCY: "parallel efficiency",
    "persistent_balance": "balance, persistent",
    "transient_balance": "balance, transient",
    "host": "host",
    "transfer": "transfer",
    SCALING: "computation scaling",
}


def build(study: Study) -> Section | None:
    """None if no size has the step records of all its ranks."""
    rows: list[tuple[Curve, Point, list[Value]]] = []
    lowest = []
    for curve, point in common.all_points(study):
        runs = _repeats(point)
        if not runs:
            continue
        base = curve.base
        before = _repeats(base) if base is not None and base is not point else []
        factors = {name: common.of_steps(point, value) for name, value in over_repeats(runs).items()}
        scaling = base and before and computation_scaling(runs, before, point.work_ratio(base))
        rows.append((curve, point, [*factors.values(), common.of_steps(point, scaling) if scaling else None]))
        if point.world_size > 1:
            place = common.point_name(study, curve, point)
            lowest += [(name, factors[name], place) for name in FACTORS]
    if not lowest:
        return None
    name, value, place = min(lowest, key=lambda each: each[1].value)
    columns = [Column(key, heading, "share", "pop-factors") for key, heading in NAMES.items()]
    table = common.size_table(study, "pop_factors", "Factors of the parallel efficiency.", columns, rows)
    conclusion = say("smallest_factor", name=NAMES[name], value=value, place=place)
    return Section(
        "pop", "POP factors", conclusion, key=f"{NAMES[name]} {percent(value.value)}", tables=[table]
    )


def _repeats(point: Point) -> list[UsefulTime]:
    """Times of the repeats of a point; empty if one of them has none, or for stages of a pipeline, whose
    work differs."""
    runs = []
    for run, metrics in zip(point.runs, point.metrics, strict=True):
        time = None if metrics.strategy == "pipeline" else useful_time(run.steps)
        if time is None or len(time.useful_s) != point.world_size:
            return []
        runs.append(time)
    return runs
