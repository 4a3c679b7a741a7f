"""Stragglers: the slow rank, node or link, and own work, waiting and lateness by rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from analysis.draw.heat_map import heat_map
from analysis.draw.style import PHASE_NAMES, Axis
from analysis.report.common import all_points, of_steps, point_name, size_columns, size_values
from analysis.report.section import Column, Figure, RunLink, Section, Table, Value
from analysis.report.sentences import say
from analysis.results.culprits import (
    Culprit,
    Diagnosis,
    in_each_repeat,
    mean_excess_s,
    mean_share,
    nodes_of_moving_rank,
    repeated_culprits,
)
from analysis.results.curves import Curve, Point
from analysis.results.lateness import Lateness, lateness
from analysis.results.slow_ranks import last_shares
from analysis.results.waiting import equal_blame
from analysis.stats.batch_means import mean_interval
from analysis.study import RunStragglers, Study
from analysis.units import listed, seconds

ORDER = 100

_MOST_RANKS = 8
"""Rows of the table of ranks on the page."""
_LEAST_SCALE = 0.03
"""Strongest colour of the heat map, at least: as a fraction of a rank's own seconds."""

Examined = tuple[Curve, Point, str, RunStragglers]


def build(study: Study) -> Section | None:
    """None where no run has step records of several ranks."""
    examined = [
        (curve, point, path, study.stragglers[path])
        for curve, point in all_points(study)
        for path in (run.path for run in point.runs)
        if path in study.stragglers
    ]
    if not examined:
        return None
    leading = _leading(examined)
    culprits = _culprits(study, examined)
    return Section(
        "stragglers",
        "Stragglers",
        answer(study, *leading[:2]),
        tables=[*([culprits] if culprits.rows else []), _ranks(study, leading)],
        figures=[_figure(leading, emulated=study.emulated)],
    )


def answer(study: Study, curve: Curve, point: Point) -> str:
    """The rank, node or link that costs most in at least half of the repeats of a point, that there is none,
    or the reason why this is unknown; empty for one rank."""
    if point.world_size == 1:
        return ""
    repeats = study.diagnoses(point)
    culprits = repeated_culprits(repeats)
    first = culprits[0] if culprits else None
    named = in_each_repeat(first, repeats) if first else []
    once = [repeat.culprits[0].name for repeat in repeats if repeat.culprits]
    nodes = {culprit: nodes_of_moving_rank(culprit, repeats) for culprit in culprits}
    limits = [repeat.sensitivity for repeat in repeats if repeat.sensitivity]
    limit = max(limits, key=lambda limit: limit.share, default=None)
    unknown = "" if repeats else _why_not_examined(point)
    if len(limits) < len(repeats):
        unknown = "each step contains its waiting: compute_s, or comm_wait_s and comm_transfer_s, are needed"
    elif limit and np.isinf(limit.share):
        unknown = "too few steps"
    return say(
        "slow",
        place=point_name(study, curve, point),
        unknown=unknown,
        first=first,
        excess_s=mean_excess_s(named) if named else None,
        share=mean_share(named) if named else None,
        phase=first and PHASE_NAMES.get(first.phase, "work"),
        repeats=len(repeats),
        times=len(named) or len(once),
        nodes=len(nodes[first]) if first else 0,
        further=max(0, len({each.ranks if nodes[each] else each.part for each in culprits}) - 1),
        once=list(dict.fromkeys(once)),
        limit=limit,
        links=_links(repeats),
        elsewhere=_elsewhere(study, point),
    )


def _links(repeats: Sequence[Diagnosis]) -> str:
    """`Diagnosis.links` of repeats: reasons not to judge first, `judged` if all are."""
    states = {repeat.links for repeat in repeats}
    reasons = sorted(states - {"", "judged", "not measured"})
    if reasons or "not measured" in states:
        return listed(reasons) or "not measured"
    return "judged" if states == {"judged"} else ""


def _elsewhere(study: Study, point: Point) -> list[str]:
    """Ranks, nodes and links that are named at other points."""
    return [
        f"{culprits[0].name} at {point_name(study, curve, other)}"
        for curve, other in all_points(study)
        if other is not point and (culprits := repeated_culprits(study.diagnoses(other)))
    ]


def _why_not_examined(point: Point) -> str:
    if all(each.strategy == "pipeline" for each in point.metrics):
        return "stages of a pipeline have different work"
    lacking = [text for run in point.runs for text in run.incomplete]
    return lacking[0] if lacking else "the ranks have no measured step in common"


def _leading(examined: list[Examined]) -> Examined:
    """Of the runs with most ranks, the one with the largest cost."""
    return max(
        examined,
        key=lambda each: (each[3].seconds.ranks, sum(one.cost_s for one in each[3].diagnosis.culprits)),
    )


def _culprits(study: Study, examined: list[Examined]) -> Table:
    """Each part of each point once, its numbers means over the repeats that name it."""
    rows: list[list[Value]] = []
    links = []
    for curve, point in all_points(study):
        runs = [(path, run.diagnosis) for _, at, path, run in examined if at is point]
        for named in _by_part([diagnosis for _, diagnosis in runs]):
            first = named[0]
            last = [each.last_share for each in named if each.last_share is not None]
            rows.append(
                [
                    *size_values(study, curve, point),
                    first.name,
                    first.phase.removeprefix("comm_").removesuffix("_s"),
                    of_steps(point, mean_excess_s(named)),
                    mean_share(named),
                    f"{min(each.first_step for each in named)} to {max(each.last_step for each in named)}",
                    float(np.mean(last)) if last else None,
                ]
            )
            links.append(
                [
                    RunLink(Path(path).name, path)
                    for path, diagnosis in runs
                    if any(each in named for each in diagnosis.culprits)
                ]
            )
    columns = [
        *size_columns(study),
        Column("name", "slow"),
        Column("phase", "phase"),
        Column("excess_s", "excess", "s", "straggler-excess"),
        Column("share", "cost, of the step", "share", "straggler-cost"),
        Column("steps", "steps"),
        Column("last_share", "last in", "share", "late-share"),
    ]
    return Table("stragglers", "Slow ranks, nodes and links.", columns, rows, links)


def _by_part(repeats: Sequence[Diagnosis]) -> list[list[Culprit]]:
    """All culprits, those of one part or moving rank together, the costliest first."""
    every = sorted((each for repeat in repeats for each in repeat.culprits), key=lambda each: -each.cost_s)
    groups: list[list[Culprit]] = []
    known: set[int] = set()
    for culprit in every:
        if id(culprit) not in known:
            same = [each for each in in_each_repeat(culprit, repeats) if id(each) not in known]
            groups.append([culprit, *(each for each in same if each is not culprit)])
            known |= {id(each) for each in groups[-1]}
    return groups


def _ranks(study: Study, leading: Examined) -> Table:
    """Own work and synchronisation by rank of one run, largest charges first."""
    _, point, path, run = leading
    own_s, hosts, floor_s = run.seconds.own_s, run.seconds.hosts, study.waiting[path].floor_s
    blame = equal_blame(own_s).mean(axis=1)
    whole = float(blame.sum()) or 1.0
    of_node = {host: float(blame[ranks].sum()) for host, ranks in run.seconds.nodes.items()}
    last = last_shares(own_s)
    rows: list[list[Value]] = [
        [
            run.seconds.rank_ids[rank],
            hosts[rank],
            of_steps(point, mean_interval(own_s[rank])),
            None if floor_s is None else max(0.0, float(run.seconds.wait_s[rank].mean()) - floor_s),
            float(last[rank]),
            float(blame[rank]) / whole,
            of_node[hosts[rank]] / whole if hosts[rank] else None,
        ]
        for rank in np.argsort(-blame, kind="stable").tolist()
    ]
    columns = [
        Column("rank", "rank", "count"),
        Column("host", "node"),
        Column("own_s", "own work", "s"),
        Column("wait_s", "waiting", "s", "exposed-communication"),
        Column("last_share", "last in", "share", "late-share"),
        Column("blame_share", "of all waiting", "share", "blame"),
        Column("node_share", "its node's", "share", "blame"),
    ]
    link = RunLink(Path(path).name, path)
    sources = [[link]] * len(rows)
    return Table("ranks", f"Ranks of run {link.name}.", columns, rows, sources, most_rows=_MOST_RANKS)


def _figure(leading: Examined, *, emulated: bool) -> Figure:
    _, _, path, run = leading
    made = lateness(run.seconds)
    typical_s = float(np.median(run.seconds.own_s))
    high_s = max(float(np.quantile(made.excess_s, 0.995)), _LEAST_SCALE * typical_s)
    hosts = dict(zip(run.seconds.rank_ids, run.seconds.hosts, strict=True))
    names = [str(first) if first == last else f"{first} to {last}" for first, last in made.ranks]
    titles = [
        f"rank {name}{f' on {hosts[first]}' if hosts[first] else ''}: mean excess "
        f"{seconds(float(row.mean()))}"
        for name, (first, _), row in zip(names, made.ranks, made.excess_s, strict=True)
    ]
    x = Axis("step", made.steps[0][0], made.steps[-1][1])
    drawing = partial(
        heat_map,
        made.excess_s,
        names,
        x,
        (high_s, seconds(high_s)),
        titles=titles,
        emulated=emulated,
    )
    alt = (
        f"Run {Path(path).name}: own work of each rank above the median of the others, by step; strongest "
        f"colour: {seconds(high_s)} or more."
    )
    return Figure("stragglers", "Lateness by rank and step", drawing, alt, data=lambda: _cells(path, made))


def _cells(path: str, made: Lateness) -> Table:
    """The cells of the heat map, row by row."""
    columns = [
        Column("run", "run"),
        Column("first_rank", "first rank", "count"),
        Column("last_rank", "last rank", "count"),
        Column("first_step", "first step", "count"),
        Column("last_step", "last step", "count"),
        Column("excess_s", "excess", "s", "straggler-excess"),
    ]
    rows: list[list[Value]] = [
        [RunLink(Path(path).name, path), *ranks, *steps, float(excess)]
        for ranks, row in zip(made.ranks, made.excess_s, strict=True)
        for steps, excess in zip(made.steps, row, strict=True)
    ]
    return Table("lateness", "Lateness by rank and step.", columns, rows)
