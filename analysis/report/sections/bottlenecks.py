"""Bottlenecks at the largest size, ranked by the ceiling of their gain, with one line of advice each."""

from __future__ import annotations

from analysis.draw.style import PHASE_NAMES
from analysis.report import common
from analysis.report.section import Column, RunLink, Section, Table, Value
from analysis.report.sentences import say
from analysis.results.advice import Situation, advice, situation
from analysis.results.bottlenecks import NEEDED, STRAGGLERS, Bottleneck, at_largest
from analysis.study import Study

NAMES = PHASE_NAMES | {STRAGGLERS: "the stragglers' compute and waiting"}


def build(study: Study) -> Section | None:
    """None without measured phases."""
    rows: list[list[Value]] = []
    sources: list[list[RunLink]] = []
    conclusions = {}
    for curve in study.curves:
        parts, point = at_largest(study, curve), curve.points[-1]
        if parts is None:
            continue
        at = situation(study, curve, point)
        conclusions[point.samples_per_s.value] = _conclusion(
            common.point_name(study, curve, point), parts, at
        )
        for part in parts:
            size = common.size_values(study, curve, point)
            rows.append([*size, _name(part), part.share, part.ceiling, advice(part, at)])
            sources.append(common.sources(study, curve, point))
    if not conclusions:
        return None
    columns = [
        *common.size_columns(study),
        Column("part", "part"),
        Column("share", "of the step", "share"),
        Column("ceiling", "gain at most", "share", "gain-ceiling"),
        Column("advice", "to try"),
    ]
    table = Table("bottlenecks", "Gain in throughput if all of the part vanished.", columns, rows, sources)
    fastest = conclusions[max(conclusions)]
    return Section("bottlenecks", "Bottlenecks", fastest, tables=[table] if rows else [])


def _conclusion(place: str, parts: list[Bottleneck], at: Situation) -> str:
    """The part with the highest ceiling and what to try, at one size."""
    first = parts[0] if parts else None
    name, beyond = (_name(first), first.phase in NEEDED) if first else ("", False)
    action = advice(first, at, most=1) if first else ""
    return say("bottleneck", place=place, part=first, name=name, beyond=beyond, action=action)


def _name(part: Bottleneck) -> str:
    return NAMES[part.phase] + (", without the stragglers' part" if part.rest else "")
