"""Composition of the step: seconds of each phase by size."""

from __future__ import annotations

from functools import partial

from analysis.draw.bars import bars, stacked
from analysis.draw.style import PHASE_COLOURS, PHASE_NAMES, Axis, LegendItem
from analysis.efficiency import Curve, Point
from analysis.report.common import all_points, grouped_rows, point_name, size_columns, size_values, sources
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.sentences import say
from analysis.results.waterfall import SHOWN
from analysis.study import Study
from analysis.units import percent, seconds, time_scale
from disttrain.records.steps import PHASES

_VISIBLE = 0.003
"""Least length of a bar that the legend names, as a share of the longest step."""


def build(study: Study) -> Section | None:
    """Bars and table of phases; None if no run has them."""
    points = [(curve, point) for curve, point in all_points(study) if point.phases.known]
    if not points:
        return None
    means = {name: [point.phases.mean_s(name) for _, point in points] for name in PHASES}
    shown = [name for name in PHASES if _is_shown(points, name)]
    rows: list[list[Value]] = [
        [*size_values(study, curve, point), point.step_s, *(means[name][at] for name in shown)]
        for at, (curve, point) in enumerate(points)
    ]
    columns = [
        *size_columns(study),
        Column("step_s", "step", "s", "step-time"),
        *(Column(name, PHASE_NAMES[name], "s", "phases") for name in shown),
    ]
    links = [sources(study, curve, point) for curve, point in points]
    table = Table("composition", "Mean time of a step in each phase.", columns, rows, links)
    return Section("composition", "Step time by phase", "", tables=[table], figures=[_figure(study, points)])


def _is_shown(points: list[tuple[Curve, Point]], name: str) -> bool:
    shares = [share.value for _, point in points if (share := point.phases.share(name))]
    return max(shares, default=0.0) >= SHOWN


def longest_phase(study: Study, curve: Curve) -> str:
    """Name the longest phase of a step at the largest size; empty without measured phases."""
    largest = curve.points[-1]
    name = largest.phases.longest
    if name is None:
        return ""
    share = largest.phases.share(name)
    place = point_name(study, curve, largest)
    return say("longest_phase", place=place, phase=PHASE_NAMES[name], share=share.value if share else 0.0)


def _figure(study: Study, points: list[tuple[Curve, Point]]) -> Figure:
    longest = max(point.step_s.value for _, point in points)
    factor, unit = time_scale(longest)
    present = [name for name in PHASES if _is_shown(points, name)]
    rows = []
    for curve, point in points:
        parts = [
            (
                (point.composition[name] or 0.0) * factor,
                PHASE_COLOURS[name],
                f"{point_name(study, curve, point)}: {PHASE_NAMES[name]} "
                f"{seconds(point.composition[name] or 0.0)}"
                f" ({percent((point.composition[name] or 0.0) / point.step_s.value)})",
            )
            for name in present
        ]
        rows.append((curve, point, stacked(parts), seconds(point.step_s.value)))
    named = [
        name
        for name in present
        if max(point.composition[name] or 0.0 for _, point in points) > _VISIBLE * longest
    ]
    description = "; ".join(
        f"{point_name(study, curve, point)}: "
        + ", ".join(f"{PHASE_NAMES[name]} {seconds(point.composition[name] or 0.0)}" for name in present)
        for curve, point in points
    )
    drawing = partial(
        bars,
        grouped_rows(study, rows),
        Axis(f"mean time of a step ({unit})", 0.0, longest * factor),
        [LegendItem(PHASE_NAMES[name], PHASE_COLOURS[name]) for name in named],
        emulated=study.emulated,
    )
    return Figure("composition", "Step time by phase", drawing, description, data="composition")
