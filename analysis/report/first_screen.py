"""Headline and first screen: sentences that answer how it scales, where the time goes, who is slow, what
would help most; and the caveats, what must not be concluded.

With another sweep (`report --against`), the verdict of that comparison is the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.comparison import configurations
from analysis.report.common import Section, Study, leading, say
from analysis.report.sections import stragglers
from analysis.report.sections.comparison import verdict_text
from analysis.results.caveats import Caveat, Gravity, claim
from analysis.results.curves import Curve

AGAINST = "Which sweep is faster?"
SCALES = "How does it scale?"
TIME = "Where does the time go?"
SLOW = "Who is slow?"
HELPS = "What would help most?"
LIMITS = "What must you not conclude?"
"""Heading of the caveats."""


def headline(study: Study, curve: Curve) -> str:
    """What the runs of a curve settle, as one sentence without its full stop."""
    return say("headline", claim(study, curve), len(study.curves) > 1)


def caveat_text(study: Study, caveat: Caveat) -> str:
    """Sentences of a caveat; without its reason, and maybe empty, where the headline of the page says it."""
    said = bool(study.curves) and claim(study, study.leading_curve).caveat is caveat
    return say("caveat", caveat.kind, caveat.numbers, said)


def caveats(study: Study) -> list[dict[str, Any]]:
    """What the numbers do not show, the gravest first; no text where the headline says it."""
    return [
        {
            "kind": caveat.kind,
            "gravity": caveat.gravity.name.lower(),
            "text": caveat_text(study, caveat),
            "runs": sorted(map(run_name, caveat.runs)),
            "forbids": sorted(caveat.forbids),
        }
        for caveat in [*study.caveats, *_limits(study)]
    ]


def run_name(run: Path | str) -> str:
    """`sweep/run` of a run directory."""
    return "/".join(Path(run).parts[-2:])


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
    """Up to five answers by question; none without a finished run.

    Scaling, time and the slow rank, node or link are those of the leading curve; others are the conclusions
    of sections.
    """
    if not study.curves:
        return {}
    conclusions = {section.id: section.conclusion for section in sections}
    found = {
        AGAINST: conclusions.get("comparison"),
        SCALES: _scales(study, study.leading_curve),
        TIME: conclusions.get("waterfall") or conclusions.get("composition"),
        SLOW: stragglers.answer(study, leading(study)),
        HELPS: conclusions.get("bottlenecks"),
    }
    return {question: text for question, text in found.items() if text}


def _scales(study: Study, curve: Curve) -> str:
    """What stands behind the headline, and the next configuration at the largest size."""
    settled = claim(study, curve)
    texts = [say("scaling_answer", settled)]
    others = [each for each in configurations(curve, study.curves) if each.point is curve.points[-1]]
    if others and settled.case != "forbidden":
        texts.append(verdict_text([min(others, key=lambda each: each.ratio.value)]))
        if len(others) == len(study.curves) - 1 and all(each.verdict == "faster" for each in others):
            texts.append(f"The fastest of {len(study.curves)} configurations.")
    return " ".join(filter(None, texts))


def _limits(study: Study) -> list[Caveat]:
    """Sizes beyond the largest, and swept numbers of which two values do not locate the best."""
    if not study.curves:
        return []
    largest = max(study.curves, key=lambda curve: curve.points[-1].size)
    found = {key: {curve.axes.get(key) for curve in study.curves} for key in largest.axes}
    few = [
        key.rpartition(".")[2]
        for key, values in found.items()
        if len(values) == 2 and all(type(value) in (int, float) for value in values)
    ]
    numbers = {"largest": largest.name(largest.points[-1]), "few": few}
    return [Caveat("limits", Gravity.NOTE, numbers=numbers)]
