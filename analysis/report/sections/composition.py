"""Composition of the step: seconds of each phase by size."""

from __future__ import annotations

from analysis.draw.style import PHASE_COLOURS, PHASE_NAMES
from analysis.report.common import all_points, point_name, size_table, stacked_figure
from analysis.report.section import Column, Section
from analysis.report.sentences import say
from analysis.results.curves import Curve
from analysis.results.waterfall import SHOWN
from analysis.study import Study
from disttrain.records.steps import PHASES

ORDER = 70


def build(study: Study) -> Section | None:
    """Bars and table of phases; None if no run has them."""
    points = [(curve, point) for curve, point in all_points(study) if point.phases.known]
    if not points:
        return None
    shares = {name: [point.phases.share(name) for _, point in points] for name in PHASES}
    shown = [name for name in PHASES if max(each.value if each else 0.0 for each in shares[name]) >= SHOWN]
    columns = [
        Column("step_s", "step", "s", "step-time"),
        *(Column(name, PHASE_NAMES[name], "s", "phases") for name in shown),
    ]
    rows = [
        (curve, point, [point.step_s, *(point.phases.mean_s(name) for name in shown)])
        for curve, point in points
    ]
    table = size_table(study, "composition", "Mean time of a step in each phase.", columns, rows)
    figure = stacked_figure(
        study,
        "composition",
        "Step time by phase",
        "mean time of a step",
        "s",
        {name: (PHASE_NAMES[name], PHASE_COLOURS[name]) for name in shown},
        [(curve, point, {name: point.composition[name] or 0.0 for name in shown}) for curve, point in points],
    )
    return Section("composition", "Step time by phase", "", tables=[table], figures=[figure])


def longest_phase(study: Study, curve: Curve) -> str:
    """Name the longest phase of a step at the largest size; empty without measured phases."""
    largest = curve.points[-1]
    name = largest.phases.longest
    share = largest.phases.share(name) if name else None
    if name is None or share is None:
        return ""
    place = point_name(study, curve, largest)
    return say("longest_phase", place=place, phase=PHASE_NAMES[name], share=share.value)
