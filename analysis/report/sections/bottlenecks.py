"""Bottlenecks at the largest size, ranked by the ceiling of their gain, with one line of advice each."""

from __future__ import annotations

from analysis.draw.style import PHASE_NAMES
from analysis.report import common
from analysis.report.section import Column, Section, Value
from analysis.report.sentences import say
from analysis.results.advice import Situation, advice, situation
from analysis.results.bottlenecks import NEEDED, STRAGGLERS, Bottleneck, at_largest
from analysis.results.curves import Curve, Point
from analysis.study import Study

ORDER = 80

NAMES = PHASE_NAMES | {STRAGGLERS: "the stragglers' compute and waiting"}


def build(study: Study) -> Section | None:
    """None without measured phases."""
    rows: list[tuple[Curve, Point, list[Value]]] = []
    conclusions = {}
    for curve in study.curves:
        parts, point = at_largest(study, curve), curve.points[-1]
        if parts is None:
            continue
        at = situation(study, curve, point)
        place = common.point_name(study, curve, point)
        conclusions[point.samples_per_s.value] = _conclusion(place, parts, at)
        rows += [(curve, point, [_name(part), part.share, part.ceiling, advice(part, at)]) for part in parts]
    if not conclusions:
        return None
    columns = [
        Column("part", "part"),
        Column("share", "of the step", "share"),
        Column("ceiling", "gain at most", "share", "gain-ceiling"),
        Column("advice", "to try"),
    ]
    caption = "Gain in throughput if all of the part vanished."
    tables = [common.size_table(study, "bottlenecks", caption, columns, rows)] if rows else []
    return Section("bottlenecks", "Bottlenecks", conclusions[max(conclusions)], tables=tables)


def _conclusion(place: str, parts: list[Bottleneck], at: Situation) -> str:
    """The part with the highest ceiling and what to try, at one size."""
    first = parts[0] if parts else None
    name, beyond = (_name(first), first.phase in NEEDED) if first else ("", False)
    action = advice(first, at, most=1) if first else ""
    return say("bottleneck", place=place, part=first, name=name, beyond=beyond, action=action)


def _name(part: Bottleneck) -> str:
    return NAMES[part.phase] + (", without the stragglers' part" if part.rest else "")
