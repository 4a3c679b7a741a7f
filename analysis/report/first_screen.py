"""Headline and first screen: sentences that answer how it scales, where the time goes, who is slow, what
would help most, and what does not follow.

With another sweep (`report --against`), the verdict of that comparison is the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analysis.comparison import configurations
from analysis.report.common import sentence
from analysis.report.section import Section
from analysis.report.sections import stragglers
from analysis.report.sections.comparison import verdict_text
from analysis.report.sentences import say
from analysis.results.caveats import Caveat
from analysis.results.claims import claim
from analysis.results.curves import Curve
from analysis.study import Study

AGAINST = "Which sweep is faster?"
SCALES = "How does it scale?"
TIME = "Where does the time go?"
SLOW = "Who is slow?"
HELPS = "What would help most?"
LIMITS = "What must you not conclude?"


def headline(study: Study, curve: Curve) -> str:
    """What the runs of a curve settle, as one sentence without its full stop."""
    return say("headline", claim(study, curve), len(study.curves) > 1)


def caveat_text(study: Study, caveat: Caveat) -> str:
    """Sentences of a caveat; without its reason, and maybe empty, where the headline of the page says it."""
    said = bool(study.curves) and claim(study, study.leading_curve).caveat is caveat
    return say("caveat", caveat.kind, caveat.numbers, said)


def lead(study: Study) -> str:
    """Headline of the page."""
    if study.curves:
        return headline(study, study.leading_curve)
    benchmarks = sum(run.folder.comm_bench.exists() for run in study.runs)
    scripts = sum(run.state == "done" and run.reported is not None for run in study.runs)
    states = Counter(run.state for run in study.runs)
    failed = {run.note.partition(":")[0] for run in study.runs if run.state == "failed"}
    return say("no_curve", benchmarks, scripts, states, failed)


def setting(study: Study) -> str:
    """Model size, global batch and steps of the runs in the figures; empty without a run."""
    return say("setting", [run.metrics for run in study.included])


def answers(study: Study, sections: Sequence[Section]) -> dict[str, str]:
    """Up to six answers by question; none without a finished run.

    Scaling, time and the slow rank, node or link are those of the leading curve; others are the conclusions
    of sections.
    """
    if not study.curves:
        return {}
    curve = study.leading_curve
    conclusions = {section.id: section.conclusion for section in sections}
    found = {
        AGAINST: conclusions.get("comparison"),
        SCALES: _scales(study, curve),
        TIME: conclusions.get("waterfall") or conclusions.get("composition"),
        SLOW: stragglers.answer(study, curve, curve.points[-1]),
        HELPS: conclusions.get("bottlenecks"),
        LIMITS: _limits(study),
    }
    return {question: text for question, text in found.items() if text}


def _scales(study: Study, curve: Curve) -> str:
    """What stands behind the headline, and the next configuration at the largest size."""
    settled = claim(study, curve)
    others = [each for each in configurations(curve, study.curves) if each.point is curve.points[-1]]
    if settled.case == "forbidden" or not others:
        return say("scaling_answer", settled)
    nearest = min(others, key=lambda each: each.ratio.value)
    is_fastest = len(others) == len(study.curves) - 1 and all(each.verdict == "faster" for each in others)
    fastest = f"The fastest of {len(study.curves)} configurations." if is_fastest else ""
    return sentence([say("scaling_answer", settled), verdict_text([nearest]), fastest])


def _limits(study: Study) -> str:
    """Sizes beyond the largest, and swept numbers of which two values do not locate the best."""
    largest = max(study.curves, key=lambda curve: curve.points[-1].size)
    values = {key: {curve.axes.get(key) for curve in study.curves} for key in largest.axes}
    few = [
        key.rpartition(".")[2]
        for key, found in values.items()
        if [type(each) in (int, float) for each in found] == [True, True]
    ]
    return say("limits", largest.name(largest.points[-1]), few)
