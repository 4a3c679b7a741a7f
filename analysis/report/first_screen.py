"""The first screen: sentences that answer how it scales, where the time goes, who is slow, what would help
most, and what does not follow.

With another sweep (`report --against`), the verdict of that comparison is the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analysis.comparison import fastest
from analysis.report.common import sentence
from analysis.report.headline import headline, scaling_answer, without_curve
from analysis.report.section import Section
from analysis.report.sections import composition, configurations, stragglers, waterfall
from analysis.report.sentences import say
from analysis.results.curves import Curve
from analysis.results.waterfall import largest_loss, waterfalls
from analysis.study import Study
from analysis.units import short_count

AGAINST = "Which sweep is faster?"
SCALES = "How does it scale?"
TIME = "Where does the time go?"
SLOW = "Who is slow?"
HELPS = "What would help most?"
LIMITS = "What must you not conclude?"


class Answer(NamedTuple):
    """One answer of the first screen, with its question."""

    question: str
    text: str


def lead(study: Study) -> str:
    """Headline of the page."""
    if not study.curves:
        return without_curve(study)
    return headline(study, study.leading_curve)


def setting(study: Study) -> str:
    """Model size, global batch and steps of the runs in the figures; empty without a curve."""
    if not study.curves:
        return ""
    parts = {"parameters": " parameters", "global_batch_size": " samples a step", "steps": " steps"}
    found = []
    for column, unit in parts.items():
        known = [value for run in study.included if (value := getattr(run.metrics, column)) is not None]
        if known:
            low, high = short_count(min(known)), short_count(max(known))
            found.append(f"{low if low == high else f'{low} to {high}'}{unit}")
    return " \N{MIDDLE DOT} ".join(found)


def answers(study: Study, sections: Sequence[Section]) -> list[Answer]:
    """Up to six answers; none without a finished run.

    With another sweep, the first is the conclusion of the section of its comparison. Scaling, time and the
    slow rank, node or link are those of the leading curve; the help is the conclusion of the section of
    bottlenecks.
    """
    if not study.curves:
        return []
    conclusions = {section.id: section.conclusion for section in sections}
    found = {
        AGAINST: conclusions.get("comparison", ""),
        SCALES: _scales(study, study.leading_curve),
        TIME: _time(study, study.leading_curve),
        SLOW: stragglers.answer(study, study.leading_curve, study.leading_curve.points[-1]),
        HELPS: conclusions.get("bottlenecks", ""),
        LIMITS: _limits(study),
    }
    return [Answer(question=question, text=text) for question, text in found.items() if text]


def _time(study: Study, curve: Curve) -> str:
    """The largest loss at the largest size of a curve, and its cause in compute."""
    sizes = [each for each in waterfalls(study) if each.curve is curve]
    largest = largest_loss(sizes[-1]) if sizes else None
    if largest is None or study.forbidden("headline", curve):
        return composition.longest_phase(study, curve)
    cause = waterfall.compute_cause(study, sizes[-1]) if largest.name == "compute_s" else ""
    return sentence([waterfall.loss_sentence(study, sizes[-1]), cause])


def _scales(study: Study, curve: Curve) -> str:
    """What stands behind the headline, and the next configuration."""
    if study.forbidden("headline", curve):
        return say("base_line", curve)
    many = len(study.curves)
    others = f"The fastest of {many} configurations." if many > 1 and fastest(curve, study.curves) else ""
    return sentence([scaling_answer(study, curve), configurations.nearest(study), others])


def _limits(study: Study) -> str:
    """Sizes beyond the largest, and swept numbers of which two values do not locate the best."""
    lead = study.leading_curve
    size, unit = max((curve.points[-1].size, curve.unit) for curve in study.curves)
    values = {
        key: {curve.axes.get(key) for curve in study.curves if curve.sweep == lead.sweep} for key in lead.axes
    }
    few = [
        key.rpartition(".")[2]
        for key, tried in values.items()
        if len(tried) == 2 and all(type(value) in (int, float) for value in tried)
    ]
    return say("limits", size, unit, few)
