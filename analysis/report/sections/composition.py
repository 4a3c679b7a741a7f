"""Composition of the step: seconds of each phase by size."""

from __future__ import annotations

from analysis.draw.style import PHASE_COLOURS, PHASE_NAMES
from analysis.report.common import all_points, kept, point_name, point_table, stacked_figure
from analysis.report.section import Column, Section
from analysis.report.sentences import say
from analysis.results.curves import phase_s
from analysis.results.waterfall import SHOWN
from analysis.study import Study
from disttrain.records.steps import PHASES

ORDER = 70


def build(study: Study) -> Section | None:
    """Bars and table of phases; None if no run has them."""
    items = [(curve, point, point) for curve, point in all_points(study) if point.phases.known]
    shown = [
        name
        for name in PHASES
        if any((point.composition[name] or 0.0) >= SHOWN * point.step_s.value for *_, point in items)
    ]
    columns = [
        Column("step_s", "step", "s", "step-time"),
        *(
            Column(name, PHASE_NAMES[name], "s", "phases", get=phase_s(name), colour=PHASE_COLOURS[name])
            for name in shown
        ),
    ]
    title = "Step time by phase"
    table = point_table(study, "composition", "Mean time of a step in each phase.", columns, items)
    if table is None:
        return None
    curve, point = study.leading_curve, study.leading_curve.points[-1]
    longest = max(PHASES, key=lambda name: point.composition[name] or 0.0)
    place, share = point_name(study, curve, point), point.phases.share(longest)
    text = say("longest_phase", place, PHASE_NAMES[longest], share) if point.phases.known else ""
    figures = kept(stacked_figure(study, "composition", title, "mean time of a step", columns, items))
    return Section("composition", title, text, tables=[table], figures=figures)
