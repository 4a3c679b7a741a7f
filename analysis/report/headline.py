"""The headline of a curve, and that of a report without one."""

from __future__ import annotations

from collections import Counter

from analysis.report.sentences import say
from analysis.results.caveats import Caveat
from analysis.results.claims import claim
from analysis.results.curves import Curve
from analysis.study import Study
from analysis.units import listed, plural


def headline(study: Study, curve: Curve) -> str:
    """What the runs of a curve settle, as one sentence without its full stop."""
    name = f" ({curve.label})" if len(study.curves) > 1 else ""
    text = say("headline", claim(study, curve), name)
    return f"Emulated: {text}" if curve.emulated else text


def scaling_answer(study: Study, curve: Curve) -> str:
    """The interval of a settled efficiency with the phases that it lost to; else the base."""
    return say("scaling_answer", claim(study, curve))


def caveat_text(study: Study, caveat: Caveat) -> str:
    """Sentences of a caveat; without its reason, and maybe empty, where the headline of the page says it."""
    said = bool(study.curves) and claim(study, study.leading_curve).caveat is caveat
    return say("caveat", caveat.kind, caveat.numbers, said)


def without_curve(study: Study) -> str:
    """Headline of a report that no run counts in."""
    if benchmarks := sum(run.folder.comm_bench.exists() for run in study.runs):
        return f"Communication benchmark of {plural(benchmarks, 'run')}"
    if scripts := sum(run.state == "done" and run.reported is not None for run in study.runs):
        return f"{plural(scripts, 'run')} finished without step records: nothing is compared"
    states = Counter(run.state for run in study.runs)
    failed = {run.note.partition(":")[0] for run in study.runs if run.state == "failed"}
    why = f" ({', '.join(sorted(failed))})"
    counts = [f"{count} {state}{why if state == 'failed' else ''}" for state, count in sorted(states.items())]
    return f"No measured run: {listed(counts)}"
