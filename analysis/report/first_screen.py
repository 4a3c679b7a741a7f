"""The first screen: sentences that answer how it scales, where the time goes, what would help most.

With another sweep (`report --against`), the verdict of that comparison is the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.efficiency import Curve
from analysis.report import scaling_text
from analysis.report.common import sentence
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

    With another sweep, the first is the conclusion of the section of its comparison. The time names the
    culprit that the section of stragglers found; the help is the conclusion of the section of bottlenecks.
    """
    if not study.curves:
        return []
    conclusions = {section.id: section.conclusion for section in sections}
    found = {
        AGAINST: conclusions.get("comparison", ""),
        SCALES: _scales(study, leading_curve(study)),
        TIME: sentence([composition.growth(study), _why(study), _first(conclusions.get("stragglers", ""))]),
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


def _why(study: Study) -> str:
    """Cause of lost compute time on the leading curve; empty where compute loses nothing."""
    curve = leading_curve(study)
    found = [each for each in waterfall.waterfalls(study) if each.curve is curve]
    return waterfall.why(study, found[-1]) if found else ""


def _scales(study: Study, curve: Curve) -> str:
    many = len(study.curves)
    others = f"The fastest of {many} configurations." if many > 1 else ""
    return sentence([scaling_text.headline(curve, many) + ".", scaling_text.precision(curve), others])
