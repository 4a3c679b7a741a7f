"""The first screen: three sentences that answer how it scales, where the time goes, what would help most."""

from __future__ import annotations

from analysis.efficiency import Curve
from analysis.report import scaling_text
from analysis.report.common import sentence
from analysis.report.model import Answer
from analysis.report.sections import composition
from analysis.study import Study

SCALES = "How does it scale?"
TIME = "Where does the time go?"
HELPS = "What would help most?"


NOTHING = "No finished run to report on"


def lead(study: Study) -> str:
    """Headline of the page."""
    if not study.curves:
        return NOTHING
    return scaling_text.headline(leading_curve(study), len(study.curves))


def answers(study: Study) -> list[Answer]:
    """Three answers on the leading curve; none without a finished run."""
    if not study.curves:
        return []
    curve = leading_curve(study)
    return [
        Answer(question=SCALES, text=_scales(study, curve)),
        Answer(question=TIME, text=composition.growth(study)),
    ]


def leading_curve(study: Study) -> Curve:
    """The curve with the highest throughput at its largest size."""
    return max(study.curves, key=lambda curve: curve.points[-1].samples_per_s.value)


def _scales(study: Study, curve: Curve) -> str:
    many = len(study.curves)
    others = f"The fastest of {many} configurations." if many > 1 else ""
    return sentence([scaling_text.headline(curve, many) + ".", scaling_text.precision(curve), others])
