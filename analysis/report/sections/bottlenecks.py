"""Bottlenecks at the largest size, ranked by the ceiling of their gain, with one line of advice each."""

from __future__ import annotations

from analysis.draw.style import PHASE_NAMES
from analysis.report.common import Column, Section, Study, place_of, say, size_table
from analysis.results.advice import advice, situation
from analysis.results.lost_time import NEEDED, STRAGGLERS, Bottleneck, at_largest

ORDER = 80

NAMES = PHASE_NAMES | {STRAGGLERS: "the stragglers' compute and waiting"}
_COLUMNS = (
    Column("part", get=lambda row: _name(row[0])),
    Column("share", "of the step", "share", get=lambda row: row[0].share),
    Column("ceiling", "gain at most", "share", "gain-ceiling", get=lambda row: row[0].ceiling),
    Column("advice", "to try", get=lambda row: advice(*row)),
)


def build(study: Study) -> Section:
    """Empty without measured phases."""
    rows, text = [], ""
    for curve in study.curves:
        parts, place = at_largest(study, curve), place_of(study, curve.points[-1])
        if parts is None:
            continue
        at = situation(study, curve, place.point)
        rows += [(place, (part, at)) for part in parts]
        if curve is study.leading_curve:
            named = [(part, _name(part), part.phase in NEEDED, advice(part, at, most=1)) for part in parts]
            text = say("bottleneck", place.name, named)
    caption = "Gain in throughput if all of the part vanished."
    table = size_table(study, "bottlenecks", caption, _COLUMNS, rows)
    return Section("bottlenecks", "Bottlenecks", text, tables=[table])


def _name(part: Bottleneck) -> str:
    return NAMES[part.phase] + (", without the stragglers' part" if part.rest else "")
