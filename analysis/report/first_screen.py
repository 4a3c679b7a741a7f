"""The first screen: sentences that answer how it scales, where the time goes, what would help most.

With another sweep (`report --against`), the verdict of that comparison is the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.comparison import fastest
from analysis.efficiency import Curve
from analysis.report import scaling_text, straggler_text
from analysis.report.common import point_name, sentence
from analysis.report.model import Answer
from analysis.report.section import Section
from analysis.report.sections import composition, waterfall
from analysis.study import Study

AGAINST = "Which sweep is faster?"
SCALES = "How does it scale?"
TIME = "Where does the time go?"
HELPS = "What would help most?"


NOTHING = "No finished run to report on"


def lead(study: Study) -> str:
    """Headline of the page."""
    if not study.curves:
        return NOTHING
    return scaling_text.headline(leading_curve(study), len(study.curves))


def answers(study: Study, sections: Sequence[Section]) -> list[Answer]:
    """Up to four answers; none without a finished run.

    With another sweep, the first is the conclusion of the section of its comparison. Scaling and time are
    those of the leading curve, with its culprit; the help is the conclusion of the section of bottlenecks.
    """
    if not study.curves:
        return []
    conclusions = {section.id: section.conclusion for section in sections}
    found = {
        AGAINST: conclusions.get("comparison", ""),
        SCALES: _scales(study, leading_curve(study)),
        TIME: _time(study, leading_curve(study)),
        HELPS: conclusions.get("bottlenecks", ""),
    }
    return [Answer(question=question, text=text) for question, text in found.items() if text]


def leading_curve(study: Study) -> Curve:
    """The curve with the highest throughput at its largest size."""
    return max(study.curves, key=lambda curve: curve.points[-1].samples_per_s.value)


def _first(text: str) -> str:
    """The first sentence."""
    first, end, _ = text.partition(". ")
    return f"{first}." if end else text


def _time(study: Study, curve: Curve) -> str:
    """The largest loss at the largest size of a curve, its cause in compute, and the culprit."""
    found = [each for each in waterfall.waterfalls(study) if each.curve is curve]
    lost = (
        [waterfall.loss_sentence(study, found[-1]), waterfall.why(study, found[-1])]
        if found
        else [composition.most(curve)]
    )
    repeats = [each.diagnosis for each in straggler_text.examined(study, curve, curve.points[-1])]
    place = point_name(study, curve, curve.points[-1])
    culprit = f"On {place}: {_first(straggler_text.conclusion(repeats))}" if repeats else ""
    return sentence([*lost, culprit])


def _scales(study: Study, curve: Curve) -> str:
    many = len(study.curves)
    others = f"The fastest of {many} configurations." if many > 1 and fastest(curve, study.curves) else ""
    return sentence([scaling_text.headline(curve, many) + ".", scaling_text.precision(curve), others])
