"""Stragglers: the slow rank, node or link, waiting by cause, and lateness by rank and step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analysis.efficiency import Curve, Point
from analysis.figures.heat_map_figure import heat_map_figure
from analysis.report import straggler_text
from analysis.report.cells import cell
from analysis.report.common import (
    all_points,
    of_steps,
    over_repeats,
    point_name,
    sentence,
    size_columns,
    size_values,
)
from analysis.report.section import Column, Figure, RunLink, Section, Table, Value
from analysis.results.phases import PERSISTENT, TRANSIENT, WAIT
from analysis.results.waterfall import divided_waiting
from analysis.stats.estimates import Estimate
from analysis.stragglers.blame import equal_blame
from analysis.stragglers.culprit import Diagnosis
from analysis.stragglers.heat_map import HeatMap, heat_map
from analysis.stragglers.intervals import mean_interval
from analysis.stragglers.of_runs import MOST_RUNS, RunStragglers
from analysis.stragglers.outliers import median_of_others
from analysis.study import Study
from analysis.svg import heat_map as svg
from analysis.svg.scales import Axis
from analysis.units import percent, plural, resolved_s, seconds

_MOST_RANKS = 32
"""Rows of the table of blame."""
_LEAST_SCALE = 0.03
"""Strongest colour of the heat map, at least: as a fraction of a rank's own seconds."""

Examined = tuple[Curve, Point, str, RunStragglers]


def build(study: Study) -> Section | None:
    """Tables and heat map; None where no run has step records of several ranks."""
    found = _examined(study)
    if not found:
        return None
    leading = _leading(found)
    curve, point, _, _ = leading
    repeats = straggler_text.examined(study, curve, point)
    text = straggler_text.conclusion([each.diagnosis for each in repeats])
    conclusion = sentence([f"On {point_name(study, curve, point)}: {text}", straggler_text.power(repeats)])
    paragraphs = [
        "A step is synchronous: all ranks wait for the last. A rank, node or link is named only if its "
        "excess is "
        "significant, above 3 %, and present in most of the run or in one range of steps; jitter that "
        "hits all ranks names nobody.",
    ]
    if len(study.stragglers) >= MOST_RUNS:
        paragraphs.append(
            f"Examined: {MOST_RUNS} runs, the largest size of the fastest configuration first, then the runs "
            "on most nodes."
        )
    tables = [_waiting(study, found), _blame(leading)]
    culprits = _culprits(study, found)
    return Section(
        "stragglers",
        "Stragglers",
        conclusion,
        paragraphs=paragraphs,
        tables=[culprits, *tables] if culprits.rows else tables,
        figures=[_figure(leading, emulated=study.emulated)],
    )


def _examined(study: Study) -> list[Examined]:
    found = []
    for curve, point in all_points(study):
        for row in study.runs_of(curve, point):
            if (path := str(row["path"])) in study.stragglers:
                found.append((curve, point, path, study.stragglers[path]))
    return found


def _leading(found: list[Examined]) -> Examined:
    """Of the runs with most ranks, the one with the largest cost."""
    most = max(each.seconds.ranks for _, _, _, each in found)
    largest = [each for each in found if each[3].seconds.ranks == most]
    return max(largest, key=lambda each: sum(culprit.cost_s for culprit in each[3].diagnosis.culprits))


def _link(path: str) -> RunLink:
    return RunLink(Path(path).name, path)


def _culprits(study: Study, found: list[Examined]) -> Table:
    rows: list[list[Value]] = []
    links = []
    for curve, point, path, each in found:
        for culprit in each.diagnosis.culprits:
            rows.append(
                [
                    *size_values(study, curve, point),
                    culprit.name,
                    culprit.kind,
                    culprit.phase.removeprefix("comm_").removesuffix("_s"),
                    of_steps(point, culprit.excess_s.estimate()),
                    of_steps(point, culprit.cost.estimate(0.0)),
                    of_steps(point, culprit.cost.scaled(1 / culprit.step_s).estimate(0.0)),
                    f"{culprit.first_step} to {culprit.last_step}",
                    culprit.steps,
                    culprit.last_share,
                ]
            )
            links.append([_link(path)])
    columns = [
        *size_columns(study),
        Column("name", "slow"),
        Column("kind", "kind"),
        Column("phase", "phase"),
        Column("excess_s", "excess", "s", "straggler-excess"),
        Column("cost_s", "cost", "s", "straggler-cost"),
        Column("share", "share of step", "share", "straggler-cost"),
        Column("steps", "steps"),
        Column("step_count", "number of steps", "count"),
        Column("last_share", "last in", "share", "late-share"),
    ]
    caption = (
        "Slow ranks, nodes and links of single runs. The cost is a ceiling of the gain per step; last in: "
        "share of these steps in which the rank arrives last."
    )
    return Table("stragglers", caption, columns, rows, links)


def _waiting(study: Study, found: list[Examined]) -> Table:
    """One row for each size with an examined repeat."""
    rows: list[list[Value]] = []
    sources: list[list[RunLink]] = []
    for curve, point in all_points(study):
        repeats = [(path, each) for _, other, path, each in found if other is point]
        if repeats:
            ranks = repeats[0][1].seconds.ranks
            parts = _parts_of_waiting(study, curve, point, [each.diagnosis for _, each in repeats])
            rows.append([*size_values(study, curve, point), ranks, *parts])
            sources.append([_link(path) for path, _ in repeats])
    columns = [
        *size_columns(study),
        Column("ranks", "ranks", "count"),
        Column("recorded_s", "recorded waiting", "s", "exposed-communication"),
        Column("floor_s", "noise floor", "s", "noise-floor"),
        Column("wait_s", "waiting", "s", "exposed-communication"),
        Column("persistent_s", "persistent", "s", "straggler-loss"),
        Column("transient_s", "transient", "s", "straggler-loss"),
    ]
    caption = (
        "Time of a step in which ranks wait for the last one, mean over ranks and repeats: recorded waiting "
        "- noise floor = waiting = persistent + transient. The noise floor is waiting that noise alone "
        "shows, because transfer is a minimum over ranks; it grows with their number, and all other figures "
        "of the page count it as transfer. Right-skewed noise makes the floor too large: by up to 0.4 "
        "standard deviations for lognormal noise of sigma 1 and Pareto noise of exponent 2.5, by more for "
        "stronger skew."
    )
    return Table("waiting", caption, columns, rows, sources)


def _parts_of_waiting(
    study: Study, curve: Curve, point: Point, diagnoses: Sequence[Diagnosis]
) -> list[Estimate | None]:
    """Recorded waiting, noise floor, waiting, and its persistent and transient part; own work beyond the mean
    rank as the two parts where waiting was not measured."""
    phases, wait_s = point.phases, point.phases.mean_s(WAIT)
    if wait_s is None or phases.floor_s is None:
        lost = [each.loss for each in diagnoses]
        parts = zip(*lost, strict=True)
        return [None, None, wait_s, *(over_repeats(point, part) for part in parts)]
    recorded_s = phases.mean_of(phases.array(WAIT) + phases.floor_s)
    divided = divided_waiting(study, curve, point)
    means = [divided.mean_s(name) if divided else None for name in (PERSISTENT, TRANSIENT)]
    return [recorded_s, phases.mean_of(phases.floor_s), wait_s, *means]


def _blame(leading: Examined) -> Table:
    """Waiting that each rank of one run is charged with, largest first."""
    _, point, path, each = leading
    own_s, hosts = each.seconds.own_s, each.seconds.hosts
    blame = equal_blame(own_s)
    charged = blame.mean(axis=1)
    whole = float(charged.sum()) or 1.0
    factor = len(own_s) * each.diagnosis.waiting.total_s / whole
    of_node = {host: mean_interval(blame[ranks].sum(axis=0)) for host, ranks in each.seconds.nodes.items()}
    last = own_s.argmax(axis=0)
    order = np.argsort(-charged, kind="stable")[:_MOST_RANKS]
    rows: list[list[Value]] = []
    for row in (int(index) for index in order):
        of_rank, node = mean_interval(blame[row]), of_node.get(hosts[row])
        rows.append(
            [
                each.seconds.rank_ids[row],
                hosts[row],
                of_steps(point, mean_interval(own_s[row]).estimate()),
                float((last == row).mean()),
                of_steps(point, of_rank.scaled(factor).estimate(0.0)),
                of_steps(point, of_rank.scaled(1 / whole).estimate(0.0)),
                None if node is None else of_steps(point, node.scaled(1 / whole).estimate(0.0)),
            ]
        )
    columns = [
        Column("rank", "rank", "count"),
        Column("host", "node"),
        Column("own_s", "own work", "s"),
        Column("last_share", "last in", "share", "late-share"),
        Column("blame_s", "blame", "s", "blame"),
        Column("blame_share", "of all waiting", "share", "blame"),
        Column("node_share", "its node's", "share", "blame"),
    ]
    caption = (
        f"Waiting of all ranks charged to the late ones, in rank-seconds per step of run "
        f"{Path(path).name}, over {plural(int(each.seconds.counts.sum()), 'step')}; "
        f"{_sum_of_charges(each.diagnosis, len(own_s))}. At most {_MOST_RANKS} ranks, the largest "
        "charges first."
    )
    return Table("blame", caption, columns, rows, [[_link(path)]] * len(rows))


def _sum_of_charges(diagnosis: Diagnosis, ranks: int) -> str:
    mean_s = diagnosis.waiting.total_s
    if mean_s <= 0:
        return "no rank's own work ends later than that of the others, so that nothing is charged"
    kind = "own work of the last rank beyond the mean"
    if diagnosis.wait_s is not None:
        kind = "waiting above its noise floor"
    whole, each = seconds(ranks * mean_s), seconds(mean_s)
    return f"the charges of all ranks sum to {whole}, {ranks} times {each} of {kind}"


def _darkest(point: Point, path: str, each: RunStragglers) -> str:
    """The rank with the largest mean excess in one run."""
    run = f"In run {Path(path).name}, "
    excess_s = each.seconds.own_s - median_of_others(each.seconds.own_s)
    at = int(excess_s.mean(axis=1).argmax())
    rank, host = each.seconds.rank_ids[at], each.seconds.hosts[at]
    place = f" on {host}" if host else ""
    mean = mean_interval(excess_s[at]).estimate()
    if resolved_s(mean.value) <= 0:
        return f"{run}no rank's own work exceeds the median of the others."
    size = cell(of_steps(point, mean), "s").in_text
    return (
        f"{run}rank {rank}{place} has the largest mean excess: {size} a step above the median of the others."
    )


def _figure(leading: Examined, *, emulated: bool) -> Figure:
    _, point, path, each = leading
    finding = _darkest(point, path, each)
    made = heat_map(each.seconds)
    typical_s = float(np.median(each.seconds.own_s))
    high_s = max(float(np.quantile(made.excess_s, 0.995)), _LEAST_SCALE * typical_s)
    hosts = dict(zip(each.seconds.rank_ids, each.seconds.hosts, strict=True))
    names = [str(first) if first == last else f"{first} to {last}" for first, last in made.ranks]
    titles = [
        f"rank {name}{f' on {hosts[first]}' if hosts[first] else ''}: mean excess "
        f"{seconds(float(row.mean()))}"
        for name, (first, _), row in zip(names, made.ranks, made.excess_s, strict=True)
    ]
    x = Axis("step", made.steps[0][0], made.steps[-1][1])
    description = f"Excess of each rank's own work over the median of the others, by step. {finding}"
    drawn = svg.heat_map(
        made.excess_s,
        names,
        x,
        name="stragglers",
        title="Lateness by rank and step",
        description=description,
        scale=(0.0, high_s),
        form=seconds,
        row_titles=titles,
    )
    reading = (
        "A row is a rank, a column a range of steps, and a strong colour a "
        f"rank whose own work takes longer than the median of the others by {seconds(high_s)} "
        f"({percent(high_s / typical_s, 0)}) or more. A row in a strong colour is a slow rank, a part "
        "of it a rank that is slow for a while, and scattered cells are jitter."
    )
    return Figure(
        "stragglers",
        "Lateness by rank and step",
        finding,
        drawn,
        description,
        lambda: heat_map_figure(made.excess_s, names, x, (0.0, high_s), form=seconds, emulated=emulated),
        reading,
        data=lambda: _lateness(path, made),
    )


def _lateness(path: str, made: HeatMap) -> Table:
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
        [_link(path), *ranks, *steps, float(excess)]
        for ranks, row in zip(made.ranks, made.excess_s, strict=True)
        for steps, excess in zip(made.steps, row, strict=True)
    ]
    caption = (
        "Own work of a rank above the median of the others: mean over the steps of a cell, of several ranks "
        "the largest."
    )
    return Table("lateness", caption, columns, rows)
