"""Communication: share of the step, hidden and exposed time, bus bandwidth by collective."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from analysis.report.common import (
    all_points,
    kept,
    over_repeats,
    point_name,
    size_table,
    stacked_figure,
    step_figure,
)
from analysis.report.section import Column, Figure, Section, Value
from analysis.report.sentences import say
from analysis.results.communication import Communication
from analysis.results.curves import Curve, Point
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import percent
from disttrain.records.communication import CollectiveSummary

ORDER = 90

_LISTED = 8
"""Collectives listed for each size, longest first; the rest is in the runs' metrics.json."""
_COLUMNS = (
    Column("share", "share of step", "share", "communication-share"),
    Column("wait_s", "waiting for peers", "s", "exposed-communication"),
    Column("transfer_s", "data transfer", "s", "exposed-communication"),
    Column("hidden_s", "hidden", "s", "hidden-communication"),
    Column("bytes", "payload per rank", "B"),
    Column("bus_bytes_per_s", "bus bandwidth", "B/s", "bus-bandwidth"),
    Column("line_share", "of line rate", "share", "line-share"),
    Column("measured_share", "of measured rate", "share", "measured-share"),
)
_COLLECTIVE_COLUMNS = (
    Column("collective", "collective"),
    Column("bytes", "bytes", "B"),
    Column("total_s", "duration", "s"),
    Column("hidden_s", "hidden", "s", "hidden-communication"),
    Column("exposed_s", "exposed", "s", "exposed-communication"),
    Column("bus_bytes_per_s", "bus bandwidth", "B/s", "bus-bandwidth"),
)
_COLOURS = {"wait_s": "wait", "transfer_s": "c1", "hidden_s": "hidden"}
"""Segments of a bar by column."""
_Means = dict[str, Estimate | None]


def build(study: Study) -> Section | None:
    """None if no run communicates."""
    several = [Communication(*at) for at in all_points(study) if at[1].world_size > 1]
    sizes = [(each, _means(each)) for each in several]
    if not any(value for _, means in sizes for value in means.values()):
        return None
    rows = [(each.curve, each.point, [*means.values()]) for each, means in sizes]
    leading = [means["share"] for each, means in sizes if each.curve is study.leading_curve]
    shares = [share for share in leading if share]
    caption = "Communication of a step, means over ranks and repeats."
    tables = [size_table(study, "communication", caption, _COLUMNS, rows)]
    if collectives := [row for each in several for row in _collectives(each)]:
        caption = f"Collectives of profiled steps, the {_LISTED} longest of each size."
        tables.append(size_table(study, "collectives", caption, _COLLECTIVE_COLUMNS, collectives))
    return Section(
        "communication",
        "Communication",
        _conclusion(study, sizes),
        key=percent(shares[-1].value) if shares else "",
        paragraphs=kept(_longest(study)),
        tables=tables,
        figures=kept(*_figure(study, sizes), _ratio_figure(study)),
    )


def _means(each: Communication) -> _Means:
    """Values of `_COLUMNS`."""
    phases = each.point.phases
    return {
        "share": phases.share(WAIT, TRANSFER),
        "wait_s": phases.mean_s(WAIT),
        "transfer_s": phases.mean_s(TRANSFER),
        "hidden_s": each.mean("hidden_s"),
        "bytes": each.mean("bytes"),
        "bus_bytes_per_s": each.bus_bytes_per_s,
        "line_share": each.line_share,
        "measured_share": each.measured_share,
    }


def _collectives(each: Communication) -> Iterator[tuple[Curve, Point, list[Value]]]:
    """Rows of `_COLLECTIVE_COLUMNS`, the longest first."""
    by_name: dict[str, list[CollectiveSummary]] = {}
    for one in (one for summary in each.summaries.values() for one in summary.collectives):
        group = "" if one.dimension == "world" else f" ({one.dimension})"
        by_name.setdefault(f"{one.kind} {one.bucket}{group}", []).append(one)
    longest = sorted(by_name, key=lambda name: -fmean(one.total_s for one in by_name[name]))
    for name in longest[:_LISTED]:
        repeats = by_name[name]
        means = [
            over_repeats(each.point, [getattr(one, column.name) for one in repeats])
            for column in _COLLECTIVE_COLUMNS[2:]
        ]
        yield each.curve, each.point, [name, repeats[0].bytes, *means]


def _conclusion(study: Study, sizes: Sequence[tuple[Communication, _Means]]) -> str:
    """Share of the step and hidden share at the largest measured size, first that of the leading curve."""
    known = [at for at in sizes if at[1]["share"]]
    if not known:
        return ""
    names = {id(each): point_name(study, each.curve, each.point) for each, _ in known}
    lead = [at for at in known if at[0].curve is study.leading_curve]
    each, means = (lead or known)[-1]
    unlike = [(ratio, names[id(at)]) for at, _ in known if (ratio := at.unlike_the_mean)]
    return say(
        "communication",
        place=names[id(each)],
        **{name: means[name] for name in ("share", "wait_s", "transfer_s")},
        hidden=each.hidden_share,
        messages=[summary.count for summary in each.summaries.values()],
        unlike=max(unlike, default=None),
    )


def _longest(study: Study) -> str:
    """The size of the leading curve from which on communication takes longer than each other phase."""
    curve, first = study.leading_curve, None
    for point in reversed(curve.line):
        parts = {name: float(point.phases.array(name).sum()) for name in point.phases.seconds}
        communication = parts.pop(WAIT, 0.0) + parts.pop(TRANSFER, 0.0)
        if communication <= max(parts.values(), default=0.0):
            break
        first = point
    return say("communication_longest", point_name(study, curve, first)) if first else ""


def _ratio_figure(study: Study) -> Figure | None:
    """Exposed communication / compute by step."""
    columns = [Column("step", "step", "count"), Column("ratio", "communication / compute", "number")]
    return step_figure(
        study,
        "communication_ratio",
        "Communication / compute on rank 0",
        columns,
        lambda run: [(point.step, point.ratio) for point in run.curves["communication_computation_history"]],
    )


def _figure(study: Study, sizes: Sequence[tuple[Communication, _Means]]) -> list[Figure]:
    headings = {column.name: column.heading for column in _COLUMNS}
    shown = [name for name in _COLOURS if any(means[name] for _, means in sizes)]
    rows = [
        (each.curve, each.point, {name: value.value if (value := means[name]) else 0.0 for name in shown})
        for each, means in sizes
    ]
    if not any(sum(parts.values()) for *_, parts in rows):
        return []
    title = "Hidden and exposed communication" if "hidden_s" in shown else "Exposed communication"
    kinds = {name: (headings[name], _COLOURS[name]) for name in shown}
    return [stacked_figure(study, "communication", title, "communication in a step", "s", kinds, rows)]
