"""Bottlenecks at the largest size, ranked by the ceiling of their gain, with one line of advice each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analysis.efficiency import Curve, Point
from analysis.figures.style import PHASE_NAMES
from analysis.losses.advice import advice
from analysis.losses.bottlenecks import NEEDED, STRAGGLERS, Bottleneck, bottlenecks
from analysis.losses.compute_evidence import compute_causes, config_of
from analysis.losses.measured_options import measured_values
from analysis.losses.waterfall import Floats, PhaseTimes, has_phases
from analysis.report import common, straggler_text
from analysis.report.section import Column, RunLink, Section, Table, Value
from analysis.stragglers.culprit import Diagnosis, nodes_of_moving_rank, repeated_culprits
from analysis.study import Study
from analysis.units import bounds, fixed, percent, plural

NAMES = PHASE_NAMES | {STRAGGLERS: "the stragglers' compute and waiting"}


class SizeBottlenecks(NamedTuple):
    """Bottlenecks of the largest size of a curve."""

    curve: Curve
    point: Point
    found: list[Bottleneck]
    shared: frozenset[str]
    """Phases whose seconds are partly in the row of the stragglers."""


def build(study: Study) -> Section | None:
    """None without measured phases."""
    each = [size for curve in study.curves if (size := at_largest(study, curve)) is not None]
    if not each:
        return None
    rows: list[list[Value]] = []
    sources: list[list[RunLink]] = []
    for curve, point, found, shared in each:
        for bottleneck in found:
            if bottleneck.judged and not bottleneck.significant:
                continue
            rest = ", without the stragglers' part" if bottleneck.phase in shared else ""
            name, share = NAMES[bottleneck.phase] + rest, bottleneck.share
            line = advice_on(study, curve, point, bottleneck, rest=bool(rest))
            rows.append([*common.size_values(study, curve, point), name, share, bottleneck.ceiling, line])
            sources.append(common.sources(study, curve, point))
    columns = [
        *common.size_columns(study),
        Column("part", "part"),
        Column("share", "of the step", "share"),
        Column("ceiling", "gain at most", "share", "gain-ceiling"),
        Column("advice", "to try"),
    ]
    own = "the throughput of the same configuration" if len(each) > 1 else "throughput"
    caption = f"Gain in {own} if all of the part vanished: a ceiling, no forecast. {_listed(each)}"
    tables = [Table("bottlenecks", caption, columns, rows, sources)] if rows else []
    return Section("bottlenecks", "Bottlenecks", conclusion(study, leading(each)), tables=tables)


def _listed(each: list[SizeBottlenecks]) -> str:
    """The rule by which parts are listed."""
    every = [bottleneck for size in each for bottleneck in size.found]
    judged = "Only parts whose lower bound exceeds 1 % of the step are shown."
    unjudged = [bottleneck for bottleneck in every if not bottleneck.judged]
    if not unjudged:
        return judged
    reason = "One repeat: no interval between repeats"
    if unjudged[0].share.basis == "not stationary":
        reason = "Not stationary: no interval"
    if len(unjudged) == len(every):
        return f"{reason}, so all losses above 1 % at the largest size are listed."
    return f"{judged} Parts without such a bound are listed above 1 %."


def at_largest(study: Study, curve: Curve) -> SizeBottlenecks | None:
    """Bottlenecks of the largest size; None without measured phases."""
    point, base = curve.points[-1], curve.base
    if not has_phases(point):
        return None
    known = base is not None and base is not point and has_phases(base)
    before = study.phase_times(curve, base) if base is not None and known else None
    times = study.phase_times(curve, point)
    diagnoses = [each.diagnosis for each in straggler_text.examined(study, curve, point)]
    straggler_s = _straggler_s(times, diagnoses)
    return SizeBottlenecks(
        curve, point, bottlenecks(times, before, straggler_s), frozenset(straggler_s or ())
    )


def _straggler_s(times: PhaseTimes, diagnoses: Sequence[Diagnosis]) -> dict[str, Floats] | None:
    """Seconds of a step that named ranks and nodes cost in each repeat, by phase; None without any.

    Phases are means over ranks: of the cost, the share of the slow ranks among all ranks is in their longer
    phase, the rest in the waiting of the others.
    """
    names = {each.name for each in repeated_culprits(diagnoses) if each.kind != "link"}
    if not names or len(diagnoses) != len(times.step_s):
        return None
    found = {"comm_wait_s": np.zeros_like(times.step_s)}
    for repeat, diagnosis in enumerate(diagnoses):
        for culprit in (each for each in diagnosis.culprits if each.name in names):
            cost_s = times.step_s[repeat] * culprit.share
            own_s = cost_s * len(culprit.ranks) / times.ranks
            found.setdefault(culprit.phase, np.zeros_like(times.step_s))[repeat] += own_s
            found["comm_wait_s"][repeat] += cost_s - own_s
    return found


def leading(each: list[SizeBottlenecks]) -> SizeBottlenecks:
    """That of the curve with the highest throughput at its largest size."""
    return max(each, key=lambda found: found.point.samples_per_s.value)


def advice_on(
    study: Study,
    curve: Curve,
    point: Point,
    bottleneck: Bottleneck,
    *,
    rest: bool = False,
    most: int | None = None,
) -> str:
    """One line of advice, for the strategy of the runs and the cause of lost compute time.

    `rest`: the stragglers have a row of their own, so the advice is not on them. `most`: number of options.
    """
    runs = study.runs_of(curve, point)
    first = runs[0]
    causes = compute_causes(study, curve, point) if bottleneck.phase == "compute_s" else ()
    names = [name for cause in causes for name in cause.names if not (rest and name == "slow_ranks")]
    repeats = [each.diagnosis for each in straggler_text.examined(study, curve, point)]
    named = [each for each in repeated_culprits(repeats) if each.kind != "link"]
    config = config_of(str(first["path"]))
    counts = [
        metrics.comm.count
        for run in point.runs
        if (metrics := study.metrics.get((curve.sweep, run))) and metrics.comm is not None
    ]
    messages = max(counts, default=None)
    return advice(
        bottleneck.phase,
        first["strategy"],
        names,
        culprit=not rest and bool(named),
        several_nodes=bool(named and nodes_of_moving_rank(named[0], repeats)),
        config=config,
        messages=messages,
        own_program=common.is_measured(first) and "command" not in config,
        measured=measured_values(curve, point, study.curves),
        most=most,
    )


def conclusion(study: Study, each: SizeBottlenecks) -> str:
    """An action on the part with the highest ceiling, with its reason; or the reason why none is named."""
    curve, point, found, _ = each
    place = common.point_name(study, curve, point)
    judged = [bottleneck for bottleneck in found if bottleneck.significant]
    unjudged = found[:1] if found and not found[0].judged else []
    if not judged and not unjudged:
        counted = plural(len(point.runs), "repeat")
        return (
            f"No bottleneck is significant at {place}, by {counted}: no part takes more than 1 % for certain."
        )
    first = (judged or unjudged)[0]
    again = common.repeat_advice(study.runs_of(curve, point))
    untested = f"The share is of one repeat: {again}."
    if first.share.basis == "not stationary":
        untested = "Steps are not stationary, so the share has no interval."
    return common.sentence(
        [
            advice_on(study, curve, point, first, most=1),
            _reason(first, place),
            "" if judged else untested,
        ]
    )


def _reason(first: Bottleneck, place: str) -> str:
    """The part with its share of the step, from which the ceiling follows as s / (1 - s)."""
    name, share, gain = NAMES[first.phase], percent(first.share.value), percent(first.ceiling.value, 0)
    excess = " beyond the prediction of the base" if first.phase in NEEDED else ""
    low, high = first.ceiling.low, first.ceiling.high
    interval = "" if low is None or high is None else f" {bounds(fixed(100 * low, 0), fixed(100 * high, 0))}"
    return (
        f"At {place}, {name}{excess} is {share} of the step; without all of it, throughput would be at most "
        f"{gain} higher{interval}."
    )
