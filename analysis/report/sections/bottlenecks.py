"""Bottlenecks at the largest size, ranked by the ceiling of their gain, with one line of advice each."""

from __future__ import annotations

from typing import NamedTuple

from analysis.efficiency import Curve, Point
from analysis.figures.style import PHASE_NAMES
from analysis.losses.advice import advice
from analysis.losses.bottlenecks import Bottleneck, bottlenecks
from analysis.losses.compute_evidence import compute_causes
from analysis.losses.waterfall import phase_times
from analysis.report import common
from analysis.report.section import Column, RunLink, Section, Table, Value
from analysis.study import Study
from analysis.units import percent, plural


class SizeBottlenecks(NamedTuple):
    """Bottlenecks of the largest size of a curve."""

    curve: Curve
    point: Point
    found: list[Bottleneck]


def build(study: Study) -> Section | None:
    """None without measured phases."""
    each = [size for curve in study.curves if (size := at_largest(study, curve)) is not None]
    if not each:
        return None
    rows: list[list[Value]] = []
    sources: list[list[RunLink]] = []
    for curve, point, found in each:
        shown = [bottleneck for bottleneck in found if bottleneck.significant or len(point.runs) == 1]
        for bottleneck in shown:
            name, share = PHASE_NAMES[bottleneck.phase], bottleneck.share
            line = advice_on(study, curve, point, bottleneck)
            rows.append([*common.size_values(study, curve, point), name, share, bottleneck.ceiling, line])
            sources.append(common.sources(study, curve, point))
    columns = [
        *common.size_columns(study),
        Column("part", "part"),
        Column("share", "of the step", "share"),
        Column("ceiling", "gain at most", "share", "gain-ceiling"),
        Column("advice", "to try"),
    ]
    caption = (
        "Gain in throughput if the part vanished: a ceiling, no forecast. Only parts whose lower bound "
        "exceeds 1 % of the step are shown."
    )
    tables = [Table("bottlenecks", caption, columns, rows, sources)] if rows else []
    return Section("bottlenecks", "Bottlenecks", conclusion(study, leading(each)), tables=tables)


def at_largest(study: Study, curve: Curve) -> SizeBottlenecks | None:
    """Bottlenecks of the largest size; None without measured phases."""
    point, base = curve.points[-1], curve.base
    if not any(point.composition.values()):
        return None
    known = base is not None and base is not point and any(base.composition.values())
    before = phase_times(base, curve, study.included) if base is not None and known else None
    found = bottlenecks(phase_times(point, curve, study.included), before)
    return SizeBottlenecks(curve, point, found)


def leading(each: list[SizeBottlenecks]) -> SizeBottlenecks:
    """That of the curve with the highest throughput at its largest size."""
    return max(each, key=lambda found: found.point.samples_per_s.value)


def advice_on(study: Study, curve: Curve, point: Point, bottleneck: Bottleneck) -> str:
    """One line of advice, for the strategy of the runs and the cause of lost compute time."""
    first = study.runs_of(curve, point)[0]
    causes = compute_causes(study, curve, point) if bottleneck.phase == "compute_s" else ()
    return advice(bottleneck.phase, first["strategy"], [name for cause in causes for name in cause.names])


def conclusion(study: Study, each: SizeBottlenecks) -> str:
    """Name the significant bottleneck with the highest ceiling, or the reason why none is named."""
    curve, point, found = each
    place = common.point_name(study, curve, point)
    significant = [bottleneck for bottleneck in found if bottleneck.significant]
    if significant:
        first = significant[0]
        low, high = first.ceiling.low or 0.0, first.ceiling.high or 0.0
        return (
            f"At {place}, {PHASE_NAMES[first.phase]} has the highest ceiling: at most "
            f"{percent(first.ceiling.value, 0)} more throughput [{100 * low:.0f}, {100 * high:.0f}]. "
            f"{advice_on(study, curve, point, first)}"
        )
    if len(point.runs) == 1 and found:
        first = found[0]
        return (
            f"At {place}, {PHASE_NAMES[first.phase]} has the highest ceiling, at most "
            f"{percent(first.ceiling.value, 0)} more throughput; one repeat gives no interval, so that no "
            "bottleneck is significant."
        )
    counted = plural(len(point.runs), "repeat")
    return f"No bottleneck is significant at {place}, by {counted}: no part takes more than 1 % for certain."
