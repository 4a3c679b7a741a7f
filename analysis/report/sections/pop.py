"""POP factors by size, whose product is the parallel efficiency."""

from __future__ import annotations

from analysis.report.common import Column, Section, Study, places, say, size_table
from analysis.results.pop import EFFICIENCY, FACTORS, SCALING, curve_factors
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
_CAPTION = (
    "Factors of the parallel efficiency. Transfer here is the step beyond its slowest rank; the waterfall's "
    "is the recorded transfer with an estimate of the noise in waiting, so that the two differ slightly."
)


def build(study: Study) -> Section | None:
    """None if no size has the step records of all its ranks."""
    by_point = [factors for curve in study.curves for factors in curve_factors(curve)]
    items = list(zip(places(study), by_point, strict=True))
    known = [
        (factors[name], NAMES[name], place.name)
        for place, factors in items
        for name in FACTORS
        if factors and place.point.world_size > 1
    ]
    if not known:
        return None
    value, name, place = min(known, key=lambda each: each[0].value)
    columns = [Column(key, heading, "share", "pop-factors") for key, heading in NAMES.items()]
    table = size_table(study, "pop_factors", _CAPTION, columns, items)
    text, key = say("smallest_factor", name, value, place), f"{name} {percent(value.value)}"
    return Section("pop", "POP factors", text, key=key, tables=[table])
