"""Composition of the step: seconds of each phase by size."""

from __future__ import annotations

from analysis.draw.style import PHASE_COLOURS, PHASE_NAMES
from analysis.report.common import all_points, kept, point_name, point_table, stacked_figure
from analysis.report.section import Column, Section
from analysis.report.sentences import say
from analysis.results.curves import Curve, phase_s
from analysis.results.waterfall import SHOWN
from analysis.study import Study
from disttrain.records.steps import PHASES

ORDER = 70


def build(study: Study) -> Section | None:
    """Bars and table of phases; None if no run has them."""
    items = [(curve, point, point) for curve, point in all_points(study) if point.phases.known]
    shares = {name: [point.phases.share(name) for *_, point in items] for name in PHASES}
    shown = [
        name for name in PHASES if max((each.value for each in shares[name] if each), default=0) >= SHOWN
    ]
    columns = [
        Column("step_s", "step", "s", "step-time"),
        *(
            Column(
                name,
                PHASE_NAMES[name],
                "s",
                "phases",
                get=phase_s(name),
                colour=PHASE_COLOURS[name],
            )
            for name in shown
        ),
    ]
    title = "Step time by phase"
    table = point_table(study, "composition", "Mean time of a step in each phase.", columns, items)
    figures = kept(stacked_figure(study, "composition", title, "mean time of a step", columns, items))
    return Section("composition", title, "", tables=[table], figures=figures) if table else None


def longest_phase(study: Study, curve: Curve) -> str:
    """Name the longest phase of a step at the largest size; empty without measured phases."""
    largest = curve.points[-1]
    if not largest.phases.known:
        return ""
    name, seconds = max(largest.composition.items(), key=lambda item: item[1] or 0.0)
    share = (seconds or 0.0) / largest.step_s.value
    return say("longest_phase", point_name(study, curve, largest), PHASE_NAMES[name], share)
