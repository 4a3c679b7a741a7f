"""The headline of a curve, and that of a report without one."""

from __future__ import annotations

from collections import Counter

from analysis.report.sentences import say
from analysis.results.caveats import Caveat
from analysis.results.claims import claim
from analysis.results.curves import Curve
from analysis.study import Study


def headline(study: Study, curve: Curve) -> str:
    """What the runs of a curve settle, as one sentence without its full stop."""
    return say("headline", claim(study, curve), f" ({curve.label})" if len(study.curves) > 1 else "")


def caveat_text(study: Study, caveat: Caveat) -> str:
    """Sentences of a caveat; without its reason, and maybe empty, where the headline of the page says it."""
    said = bool(study.curves) and claim(study, study.leading_curve).caveat is caveat
    return say("caveat", caveat.kind, caveat.numbers, said)


def without_curve(study: Study) -> str:
    """Headline of a report that no run counts in."""
    benchmarks = sum(run.folder.comm_bench.exists() for run in study.runs)
    scripts = sum(run.state == "done" and run.reported is not None for run in study.runs)
    states = Counter(run.state for run in study.runs)
    failed = {run.note.partition(":")[0] for run in study.runs if run.state == "failed"}
    return say("no_curve", benchmarks, scripts, states, failed)
