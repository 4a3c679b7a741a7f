"""Composition of the step: seconds of each phase by size."""

from __future__ import annotations

from analysis.draw.style import PHASE_COLOURS, PHASE_NAMES
from analysis.report.common import STEP, Column, Section, Study, bars_figure, leading, places, say, size_table
from analysis.results.curves import phase_s
from analysis.results.lost_time import SHOWN
from disttrain.records.steps import PHASES

ORDER = 70
_TITLE = "Step time by phase"


def build(study: Study) -> Section | None:
    """Bars and table of phases; None if no run has them."""
    items = [(place, place.point) for place in places(study) if place.point.phases.known]
    if not items:
        return None
    columns = [
        Column(name, PHASE_NAMES[name], "s", "phases", get=phase_s(name), colour=PHASE_COLOURS[name])
        for name in PHASES
        if any((point.composition[name] or 0.0) >= SHOWN * point.step_s.value for _, point in items)
    ]
    table = size_table(study, "composition", "Mean time of a step in each phase.", [STEP, *columns], items)
    figures = bars_figure(study, table, _TITLE, "mean time of a step")
    place, point = leading(study), leading(study).point
    longest = max(PHASES, key=lambda name: point.composition[name] or 0.0)
    share = point.phases.share(longest) if point.phases.known else None
    text = say("longest_phase", place.name, PHASE_NAMES[longest], share)
    return Section("composition", _TITLE, text, tables=[table], figures=figures)
