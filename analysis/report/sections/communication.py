"""Communication: share of the step, hidden and exposed time, bus bandwidth by collective."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from analysis.draw.bars import bars, stacked
from analysis.draw.style import Axis, LegendItem
from analysis.report import common
from analysis.report.section import Column, Figure, RunLink, Section, Table, Value
from analysis.report.sentences import say
from analysis.results.communication import Communication
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import seconds, time_scale
from disttrain.records.communication import CollectiveSummary

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
_Means = dict[str, Estimate | None]
_Sizes = Sequence[tuple[Communication, _Means]]


def build(study: Study) -> Section | None:
    """None if no run communicates."""
    several = [Communication(study, *at) for at in common.all_points(study) if at[1].world_size > 1]
    sizes = [(each, _means(each)) for each in several]
    columns = [column for column in _COLUMNS if any(means[column.name] for _, means in sizes)]
    if not columns:
        return None
    table = Table(
        "communication",
        "Communication of a step, means over ranks and repeats.",
        [*common.size_columns(study), *columns],
        [[*_size(each), *(means[column.name] for column in columns)] for each, means in sizes],
        [_sources(each) for each, _ in sizes],
    )
    collectives = _collectives(study, several)
    figure = _figure(study, sizes)
    return Section(
        "communication",
        "Communication",
        _conclusion(study, sizes),
        tables=[table, *([collectives] if collectives.rows else [])],
        figures=[figure] if figure else [],
    )


def _means(each: Communication) -> _Means:
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


def _size(each: Communication) -> list[Value]:
    return common.size_values(each.study, each.curve, each.point)


def _sources(each: Communication) -> list[RunLink]:
    return common.sources(each.study, each.curve, each.point)


def _name(each: Communication) -> str:
    return common.point_name(each.study, each.curve, each.point)


def _collectives(study: Study, several: Sequence[Communication]) -> Table:
    rows: list[list[Value]] = []
    links: list[list[RunLink]] = []
    for each in several:
        by_name: dict[str, list[CollectiveSummary]] = {}
        for one in (one for summary in each.summaries.values() for one in summary.collectives):
            group = "" if one.dimension == "world" else f" ({one.dimension})"
            by_name.setdefault(f"{one.kind} {one.bucket}{group}", []).append(one)
        longest = sorted(
            by_name.items(), key=lambda item: -sum(one.total_s for one in item[1]) / len(item[1])
        )
        for name, repeats in longest[:_LISTED]:
            means = [
                common.over_repeats(each.point, [getattr(one, field) for one in repeats])
                for field in ("total_s", "hidden_s", "exposed_s", "bus_bytes_per_s")
            ]
            rows.append([*_size(each), name, repeats[0].bytes, *means])
            links.append(_sources(each))
    columns = [
        *common.size_columns(study),
        Column("collective", "collective"),
        Column("bytes", "bytes", "B"),
        Column("total_s", "duration", "s"),
        Column("hidden_s", "hidden", "s", "hidden-communication"),
        Column("exposed_s", "exposed", "s", "exposed-communication"),
        Column("bus_bytes_per_s", "bus bandwidth", "B/s", "bus-bandwidth"),
    ]
    caption = f"Collectives of profiled steps, the {_LISTED} longest of each size."
    return Table("collectives", caption, columns, rows, links)


def _conclusion(study: Study, sizes: _Sizes) -> str:
    """Share of the step and hidden share at the largest measured size, first that of the leading curve."""
    lead = study.leading_curve
    known = [at for at in sizes if at[1]["share"]]
    if not known:
        return ""
    each, means = max(enumerate(known), key=lambda item: (item[1][0].curve is lead, item[0]))[1]
    return say(
        "communication",
        place=_name(each),
        **{name: means[name] for name in ("share", "wait_s", "transfer_s")},
        hidden=each.hidden_share,
        messages=[summary.count for summary in each.summaries.values()],
        unlike=max(((at.unlike_the_mean, _name(at)) for at, _ in sizes if at.unlike_the_mean), default=None),
    )


_KINDS = {
    "wait_s": ("waiting for peers", "wait"),
    "transfer_s": ("data transfer", "c1"),
    "hidden_s": ("hidden", "hidden"),
}
"""Segments of a bar: label and colour by column."""


def _figure(study: Study, sizes: _Sizes) -> Figure | None:
    shown = [name for name in _KINDS if any(means[name] for _, means in sizes)]
    lengths = [[value.value if (value := means[name]) else 0.0 for name in shown] for _, means in sizes]
    longest = max(map(sum, lengths))
    if longest <= 0:
        return None
    factor, unit = time_scale(longest)
    rows = []
    for (each, _), length_s in zip(sizes, lengths, strict=True):
        parts = [
            (value * factor, _KINDS[name][1], f"{_name(each)}: {_KINDS[name][0]} {seconds(value)}")
            for name, value in zip(shown, length_s, strict=True)
        ]
        rows.append((each.curve, each.point, stacked(parts), seconds(sum(length_s))))
    drawing = partial(
        bars,
        common.grouped_rows(study, rows),
        Axis(f"communication in a step ({unit})", 0.0, longest * factor),
        [LegendItem(*_KINDS[name]) for name in shown],
        emulated=study.emulated,
    )
    title = "Hidden and exposed communication" if "hidden_s" in shown else "Exposed communication"
    alt = "; ".join(segment.title for _, _, segments, _ in rows for segment in segments)
    return Figure("communication", title, drawing, alt, data="communication")
