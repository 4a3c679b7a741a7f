"""Stragglers: the slow rank, node or link, and own work, waiting and lateness by rank."""

from __future__ import annotations

from functools import partial
from statistics import fmean

import numpy as np

from analysis.draw.charts import heat_map
from analysis.draw.style import PHASE_NAMES, Axis
from analysis.read.run import Run
from analysis.report.common import (
    Column,
    Figure,
    Place,
    Section,
    Study,
    Table,
    of_steps,
    place_of,
    places,
    say,
    size_table,
)
from analysis.results.culprits import LINK_STATES, recurring
from analysis.results.curves import Point
from analysis.results.rank_steps import equal_blame
from analysis.results.slow_ranks import last_shares, median_of_others
from analysis.stats.estimates import block_sums, mean_interval
from analysis.units import seconds

_LEAST_SCALE = 0.03
"""Strongest colour of the heat map, at least: as a fraction of a rank's own seconds."""
_MOST_CELLS = (32, 100)
"""Ranks and columns of the heat map, at most."""

_PARTS = (
    Column("name", "slow", get="first.name"),
    Column("phase", get=lambda part: part.first.phase.removeprefix("comm_").removesuffix("_s")),
    Column("excess_s", "excess", "s", "straggler-excess"),
    Column("cost_s", "cost", "s", "straggler-cost", get=lambda part: fmean(x.cost_s for x in part.culprits)),
    Column("share", "of the step", "share", "straggler-cost"),
    Column("steps"),
    Column("last_share", "last in", "share", "late-share"),
)
"""Of a `Recurrence`."""
_RANKS = (
    Column("rank", "rank", "count"),
    Column("host", "node"),
    Column("own_s", "own work", "s"),
    Column("wait_s", "waiting", "s", "exposed-communication"),
    Column("last_share", "last in", "share", "late-share"),
    Column("blame_share", "of all waiting", "share", "blame"),
    Column("node_share", "its node's", "share", "blame"),
)
_CELLS = (
    Column("rank", "rank", "count"),
    Column("first_step", "from step", "count"),
    Column("excess_s", "excess", "s", "straggler-excess"),
)


def stragglers(study: Study) -> Section | None:
    """None where no run has step records of several ranks."""
    searched = study.stragglers
    if not searched:
        return None
    place = place_of(study, study.points[next(iter(searched))])  # the first that was searched
    run = max(
        (run for run in place.point.runs if run.path in searched),
        key=lambda run: sum(culprit.cost_s for culprit in searched[run.path].culprits),
    )
    parts = [(at, part) for at in places(study) for part in recurring(study.diagnoses(at.point), 0.0)]
    return Section(
        "stragglers",
        "Stragglers",
        answer(study, place),
        tables=[
            size_table(study, "stragglers", "Slow ranks, nodes and links.", _PARTS, parts),
            _ranks(study, place.point, run),
        ],
        figures=[_figure(study, run)],
    )


def answer(study: Study, place: Place) -> str:
    """The rank, node or link that costs most in at least half of the repeats of a size, that there is none,
    or the reason why this is unknown; empty for one rank."""
    point = place.point
    if point.world_size == 1:
        return ""
    repeats = study.diagnoses(point)
    parts = recurring(repeats)
    return say(
        "slow",
        place=place.name,
        repeats=repeats,
        parts=parts,
        phase=PHASE_NAMES.get(parts[0].first.phase, "work") if parts else "",
        lacking=_lacking(point),
        links=max((repeat.links for repeat in repeats), key=LINK_STATES.index, default=""),
        elsewhere=[
            f"{there[0].first.name} at {other.name}"
            for other in places(study)
            if other.point is not point and (there := recurring(study.diagnoses(other.point)))
        ],
    )


def _lacking(point: Point) -> str:
    """Reason why the ranks of a point are not compared."""
    if all(each.strategy == "pipeline" for each in point.metrics):
        return "stages of a pipeline have different work"
    texts = (text for run in point.runs for text in run.incomplete)
    return next(texts, "the ranks have no measured step in common")


def _ranks(study: Study, point: Point, run: Run) -> Table:
    """Own work and synchronisation by rank of one run, largest charges first."""
    of_run = study.rank_steps[run.path]
    own_s, hosts, floor_s = of_run.own_s, np.array(of_run.hosts_in()), of_run.floor_s
    blame = equal_blame(own_s).mean(axis=1)
    blame /= blame.sum() or 1.0
    wait_s = [None] * len(own_s)
    if floor_s is not None:
        wait_s = np.maximum(of_run.seconds["comm_wait_s"].mean(axis=1) - floor_s, 0.0).tolist()
    values = (
        of_run.ranks,
        hosts.tolist(),
        [of_steps(point, mean_interval(row)) for row in own_s],
        wait_s,
        last_shares(own_s).tolist(),
        blame.tolist(),
        [float(blame[hosts == host].sum()) if host else None for host in hosts],
    )
    rows = sorted(zip(*values, strict=True), key=lambda row: -row[5])
    sources = [[run]] * len(rows)
    return Table("ranks", f"Ranks of run {run.name}.", _RANKS, rows, sources)


def _figure(study: Study, run: Run) -> Figure:
    """Own work above the median of the other ranks, of many ranks those with the most; a column of several
    steps shows their mean."""
    of_run = study.rank_steps[run.path]
    most_ranks, most_columns = _MOST_CELLS
    excess_s, hosts = of_run.own_s - median_of_others(of_run.own_s), of_run.hosts_in()
    rows = np.sort(np.argsort(-excess_s.mean(axis=1))[:most_ranks])
    sums_s, sizes = block_sums(excess_s[rows], min(most_columns, excess_s.shape[1]))
    cells_s, steps = sums_s / sizes, of_run.first[np.cumsum(sizes) - sizes]
    high_s = max(float(np.quantile(cells_s, 0.995)), _LEAST_SCALE * float(np.median(of_run.own_s)))
    names = [str(of_run.ranks[row]) for row in rows]
    titles = [f"rank {of_run.ranks[row]}" + (f" on {hosts[row]}" if hosts[row] else "") for row in rows]
    x = Axis("step", float(of_run.first[0]), float(of_run.last[-1]))
    cells = [
        [of_run.ranks[row], step, excess]
        for row, of_rank_s in zip(rows, cells_s.tolist(), strict=True)
        for step, excess in zip(steps.tolist(), of_rank_s, strict=True)
    ]
    strongest = seconds(high_s)
    return Figure(
        "stragglers",
        "Lateness by rank and step",
        partial(heat_map, cells_s, names, x, (high_s, strongest), titles=titles, emulated=study.emulated),
        f"Run {run.name}: own work of each rank above the median of the others, by step; strongest colour: "
        f"{strongest} or more.",
        partial(Table, "lateness", f"Lateness by rank and step of run {run.name}.", _CELLS, cells),
    )


SECTIONS = {100: stragglers}
