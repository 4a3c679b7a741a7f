"""Sentences that name the rank, node or link that costs most, or say that there is none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.efficiency import Curve, Point
from analysis.figures.style import PHASE_NAMES
from analysis.report.common import all_points, point_name, sentence
from analysis.stragglers.culprit import (
    Culprit,
    Diagnosis,
    nodes_of_moving_rank,
    recurrence,
    repeated_culprits,
)
from analysis.stragglers.intervals import SecondsInterval
from analysis.stragglers.of_runs import RunStragglers
from analysis.stragglers.outliers import LEAST_EXCESS, smallest_excess_s
from analysis.study import Study
from analysis.units import bounds, listed, number, percent, plural, seconds, time_scale

CANNOT_COMPARE = (
    "Cannot tell: step_s of each rank contains the waiting for a slower rank, so that all ranks take equally "
    "long. The search needs compute_s, or comm_wait_s and comm_transfer_s."
)
"""Ranks whose own work is not known."""


def examined(study: Study, curve: Curve, point: Point) -> list[RunStragglers]:
    """The repeats of a point whose stragglers are known."""
    paths = [str(row["path"]) for row in study.runs_of(curve, point)]
    return [study.stragglers[path] for path in paths if path in study.stragglers]


def power(repeats: Sequence[RunStragglers]) -> str:
    """Steps examined, and the smallest excess that the search names; empty where it named a culprit.

    A rank needs 3.5 robust standard deviations of the ranks' means, 3 % of a rank's own work, and an excess
    that jitter alone does not reach in as many steps (`analysis.stragglers.outliers`).
    """
    if not repeats or any(each.diagnosis.culprits for each in repeats):
        return ""
    if not all(each.diagnosis.separates_waiting for each in repeats):
        return ""
    least_s = max(smallest_excess_s(each.seconds.own_s) for each in repeats)
    steps = sum(int(each.seconds.counts.sum()) for each in repeats)
    by_share = max(LEAST_EXCESS * float(np.median(each.seconds.own_s.mean(axis=1))) for each in repeats)
    limit = f"chance over {plural(steps, 'step')}"
    if least_s <= by_share:
        limit = f"{percent(LEAST_EXCESS, 0)} of a rank's own work"
    return f"An excess below {seconds(least_s)} a step is not named ({limit})."


def elsewhere(study: Study, curve: Curve, point: Point) -> str:
    """The ranks, nodes or links that are named at other points than this one, or that there are none."""
    named, without = [], 0
    for other, each in all_points(study):
        repeats = [found.diagnosis for found in examined(study, other, each)] if each is not point else []
        culprits = repeated_culprits(repeats)
        if culprits:
            named.append(f"{culprits[0].name} at {point_name(study, other, each)}")
        elif repeats and all(found.separates_waiting for found in repeats):
            without += 1
    if named:
        return f"Elsewhere: {listed(named)}."
    own = [found.diagnosis for found in examined(study, curve, point)]
    if not without or repeated_culprits(own):
        return ""
    kind = "size" if len(study.curves) == 1 else "point"
    return f"The same holds for {plural(without, f'other {kind}')}."


def conclusion(repeats: Sequence[Diagnosis], *, jitter: bool = True) -> str:
    """Name the culprit with the largest cost among those found in at least half of the repeats.

    `jitter`: add the time lost to ranks that are late in turn, where nobody is slow.
    """
    reasons = dict.fromkeys(each.unjudged_links for each in repeats if each.unjudged_links)
    links = f"No verdict on links: {listed([*reasons])}." if reasons else ""
    if not any(each.culprits for each in repeats):
        return sentence([_nobody(repeats, jitter=jitter), links])
    return sentence([_culprit(repeats), links])


def _culprit(repeats: Sequence[Diagnosis]) -> str:
    every = repeated_culprits(repeats)
    if not every:
        return _not_common(repeats)
    chosen, known = every[0], {_identity(each, repeats) for each in every}
    text = describe(chosen)
    if len(repeats) > 1:
        times = max(recurrence(chosen, repeats))
        nodes = nodes_of_moving_rank(chosen, repeats)
        where = f", on {plural(len(nodes), 'node')}" if nodes else ""
        text += f" Found in {times} of {len(repeats)} repeats{where}."
    if len(known) > 1:
        text += f" {plural(len(known) - 1, 'further cause')} in the table of stragglers."
    return text


def _identity(culprit: Culprit, repeats: Sequence[Diagnosis]) -> str:
    """The rank if it is slow on several nodes, or else the node or link."""
    return f"rank {culprit.ranks[0]}" if nodes_of_moving_rank(culprit, repeats) else culprit.part


def waited_for(repeats: Sequence[Diagnosis]) -> str:
    """The rank or node that the others wait for, or that there is none; empty where it cannot be told."""
    named = [each for each in repeated_culprits(repeats) if each.kind != "link"]
    if named:
        first = named[0]
        name = _identity(first, repeats) if nodes_of_moving_rank(first, repeats) else first.name
        return f"The others wait for {name}, which costs {percent(first.share)} of the step."
    if not repeats or not all(each.separates_waiting for each in repeats):
        return ""
    late = [[each.name for each in one.culprits if each.kind != "link"] for one in repeats]
    once = [names[0] for names in late if names]
    if once:
        return (
            f"In {len(once)} of {len(repeats)} repeats, the others wait for a slow rank or node: "
            f"{', '.join(dict.fromkeys(once))}. None is slow in half of the repeats."
        )
    return "No rank stands out as the one that the others wait for: ranks are late in turn."


def not_examined(study: Study, curve: Curve, point: Point) -> str:
    """The reason why no repeat of a point was searched for stragglers; empty for one rank."""
    if point.world_size == 1:
        return ""
    place, rows = point_name(study, curve, point), study.runs_of(curve, point)
    if all(row["strategy"] == "pipeline" for row in rows):
        return f"On {place}: ranks are not compared, as the stages of a pipeline have different work."
    paths = [f"{row['path']}/attempts: " for row in rows]
    lacking = [text.split(": ", 1)[1] for text in study.incomplete if text.startswith(tuple(paths))]
    reason = lacking[0] if lacking else "the ranks have no measured step in common"
    return f"On {place}: cannot tell, {reason}."


def _not_common(repeats: Sequence[Diagnosis]) -> str:
    named = [each.culprits[0].name for each in repeats if each.culprits]
    return (
        f"No {_searched(repeats)} is slow in half of the repeats; in {len(named)} of {len(repeats)} one is: "
        f"{', '.join(dict.fromkeys(named))}."
    )


def describe(culprit: Culprit) -> str:
    """One sentence: name, size with interval, steps, and the cost of a step."""
    host_first = culprit.kind == "nodes" or culprit.name == culprit.host
    name = culprit.name if host_first else culprit.name[0].upper() + culprit.name[1:]
    size = f"{_interval(culprit.excess_s)} per step"
    when = "throughout the run"
    if not culprit.persistent:
        when = f"in steps {culprit.first_step} to {culprit.last_step}"
    if culprit.link is not None:
        link = culprit.link
        usual = number(link.usual_bytes_per_s / 1e6)
        rates = f"{number(link.bytes_per_s / 1e6)} MB/s where {usual} MB/s are usual"
        return (
            f"{name} is slow ({rates}): this adds {size} of exposed transfer on all ranks, "
            f"{percent(culprit.share)} of the step."
        )
    phase = PHASE_NAMES.get(culprit.phase, "work")
    slow = f"are slower than {culprit.other_nodes}" if culprit.other_nodes else "is slow"
    return (
        f"{name} {slow}: {phase} takes {size} longer than on the median of the other ranks, {when}. At "
        "their "
        f"speed a step would be {seconds(culprit.cost_s)} ({percent(culprit.share)}) shorter."
    )


def _nobody(repeats: Sequence[Diagnosis], *, jitter: bool) -> str:
    if not all(each.separates_waiting for each in repeats):
        return CANNOT_COMPARE
    links = all(each.link_rates for each in repeats)
    link = "; no link was slow before training" if links else ""
    text = f"No rank or node is slower than the others beyond chance{link}."
    shares = [each.waiting.transient_s / each.step_s for each in repeats]
    share = sum(shares) / len(shares)
    if jitter and share >= 0.005:
        text += f" Waiting for ranks that are late in turn (jitter) takes {percent(share)} of the step."
    if any(each.unexplained_transfer and not each.unjudged_links for each in repeats):
        text += (
            " Transfer is long and no rates of links were measured, so that a slow link cannot be excluded."
        )
    return text


def _searched(repeats: Sequence[Diagnosis]) -> str:
    """The parts that were searched for a slow one: links only where all repeats measured their rates."""
    return "rank, node or link" if all(each.link_rates for each in repeats) else "rank or node"


def _interval(size: SecondsInterval) -> str:
    if size.low is None or size.high is None:
        return seconds(size.value)
    factor, unit = time_scale(abs(size.value))
    low, high = (number(each * factor) for each in (size.low, size.high))
    return f"{number(size.value * factor)} {unit} {bounds(low, high)}"
