"""POP factors by size, whose product is the parallel efficiency."""

from __future__ import annotations

from operator import methodcaller

from analysis.report.common import all_points, kept, point_name, point_table
from analysis.report.section import Column, Section
from analysis.report.sentences import say
from analysis.results.pop import EFFICIENCY, FACTORS, SCALING, point_factors
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
    points = all_points(study)
    items = [(curve, point, point_factors(point, curve.base)) for curve, point in points]
    lowest = [
        (factors[name], NAMES[name], point_name(study, curve, point))
        for curve, point, factors in items
        for name in FACTORS
        if factors and point.world_size > 1
    ]
    if not lowest:
        return None
    value, name, place = min(lowest, key=lambda each: each[0].value)
    columns = [
        Column(key, heading, "share", "pop-factors", get=methodcaller("get", key))
        for key, heading in NAMES.items()
    ]
    caption = "Factors of the parallel efficiency."
    return Section(
        "pop",
        "POP factors",
        say("smallest_factor", name=name, value=value, place=place),
        key=f"{name} {percent(value.value)}",
        tables=kept(point_table(study, "pop_factors", caption, columns, items)),
    )
