"""Composition of the step: seconds of each phase by size."""

from __future__ import annotations

from analysis.efficiency import Curve, Point
from analysis.figures.composition_figure import composition_figure
from analysis.figures.style import PHASE_CLASSES, PHASE_NAMES
from analysis.losses.size_waterfalls import leading, waterfalls
from analysis.losses.waterfall import has_phases
from analysis.report.cells import cell
from analysis.report.common import (
    all_points,
    grouped_rows,
    phases_s,
    point_name,
    sentence,
    size_columns,
    size_values,
    sources,
)
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.waterfall_text import loss_sentence
from analysis.study import Study
from analysis.svg.bars import bars, stacked
from analysis.svg.plot import LegendItem
from analysis.svg.scales import Axis
from analysis.units import listed, percent, seconds, time_scale
from disttrain.records.steps import PHASES

_VISIBLE = 0.003
"""Least length of a bar that the legend names, as a share of the longest step."""


def build(study: Study) -> Section | None:
    """Bars and table of phases; None if no run has them."""
    points = [(curve, point) for curve, point in all_points(study) if has_phases(point)]
    if not points:
        return None
    rows: list[list[Value]] = [
        [
            *size_values(study, curve, point),
            point.step_s,
            *(phases_s(study, curve, point, [name]) for name in PHASES),
        ]
        for curve, point in points
    ]
    heads = [Column(name, PHASE_NAMES[name], "s", "phases") for name in PHASES]
    table = Table(
        "composition",
        "Mean time of a step in each phase, over ranks, measured steps and repeats.",
        [*size_columns(study), Column("step_s", "step", "s", "step-time"), *heads],
        rows,
        [sources(study, curve, point) for curve, point in points],
    )
    conclusion = growth(study)
    return Section(
        "composition",
        "Step time by phase",
        conclusion,
        tables=[table],
        figures=[_figure(study, points)],
    )


def growth(study: Study) -> str:
    """The phase that takes most of a step, and the largest loss of the configuration that loses the largest
    share of its step, if the section of the waterfall does not name it."""
    found = waterfalls(study)
    if not found:
        return most(study, study.curves[0])
    shown = leading(found)
    last = {id(each.curve): each for each in found}.values()
    worst = max(last, key=lambda each: 1 - each.whole.efficiency)
    return sentence([most(study, shown.curve), loss_sentence(study, worst) if worst is not shown else ""])


def most(study: Study, curve: Curve) -> str:
    """Name the longest phase of a step at the largest size; empty without measured phases."""
    largest = curve.points[-1]
    name = longest_phase(largest)
    if name is None:
        return ""
    share = percent((largest.composition[name] or 0.0) / sum(filter(None, largest.composition.values())), 0)
    place = point_name(study, curve, largest)
    return f"On {place}, the longest phase is {PHASE_NAMES[name]}: {share} of the step."


def longest_phase(point: Point) -> str | None:
    """The phase that takes most of a step; None without measured phases."""
    return max(PHASES, key=lambda each: point.composition[each] or 0.0) if has_phases(point) else None


def _longest(study: Study, points: list[tuple[Curve, Point]]) -> str:
    """The phase that takes most of a step at the largest size of the leading curve that has phases."""
    lead = study.leading_curve
    curve, point = next((each for each in reversed(points) if each[0] is lead), points[-1])
    name = longest_phase(point) or PHASES[0]
    longest = cell(phases_s(study, curve, point, [name]), "s").in_text
    share = percent((point.composition[name] or 0.0) / point.step_s.value, 0)
    place = point_name(study, curve, point)
    return f"The longest phase on {place} is {PHASE_NAMES[name]}: {longest}, {share} of the step."


def _figure(study: Study, points: list[tuple[Curve, Point]]) -> Figure:
    longest = max(point.step_s.value for _, point in points)
    factor, unit = time_scale(longest)
    present = [name for name in PHASES if any(point.composition[name] for _, point in points)]
    rows = []
    for curve, point in points:
        parts = [
            (
                (point.composition[name] or 0.0) * factor,
                PHASE_CLASSES[name],
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
    thin = listed([PHASE_NAMES[name] for name in present if name not in named])
    small = f"Too short to see, and not in the legend: {thin}." if thin else ""
    description = "; ".join(
        f"{point_name(study, curve, point)}: "
        + ", ".join(f"{PHASE_NAMES[name]} {seconds(point.composition[name] or 0.0)}" for name in present)
        for curve, point in points
    )
    svg = bars(
        grouped_rows(study, rows),
        Axis(f"mean time of a step ({unit})", 0.0, 1.2 * longest * factor),
        name="composition",
        title="Step time by phase",
        description=description,
        legend=[LegendItem(PHASE_NAMES[name], PHASE_CLASSES[name]) for name in named],
    )
    return Figure(
        "composition",
        "Step time by phase",
        _longest(study, points),
        svg,
        description,
        lambda: composition_figure(study.curves),
        sentence(["Each bar is the mean step, divided into phases without gap or overlap.", small]),
        data="composition",
    )
