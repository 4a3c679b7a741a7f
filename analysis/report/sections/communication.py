"""Communication: share of the step, hidden and exposed time, bus bandwidth by collective."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from analysis.efficiency import Curve, Point
from analysis.report.cells import cell
from analysis.report.common import (
    all_points,
    bar_chart,
    grouped_rows,
    of_steps,
    over_repeats,
    phases_s,
    phases_share,
    point_name,
    sentence,
    size_columns,
    size_values,
    sources,
)
from analysis.report.section import Column, Figure, RunLink, Section, Table, Value
from analysis.runs.line_rate import line_rate_bytes_per_s
from analysis.stats.estimates import Estimate, ratio_of_means
from analysis.stragglers.of_runs import read_link_rates
from analysis.study import Study
from analysis.svg.bars import stacked
from analysis.svg.plot import LegendItem
from analysis.svg.scales import Axis
from analysis.units import percent, plural, seconds, time_scale
from disttrain.records.communication import CollectiveSummary, CommSummary
from disttrain.records.metrics import Metrics

_HIDDEN = "Hidden communication runs while the rank computes and costs no time of its own."
_LISTED = 12
"""Collectives listed for each size, longest first; the rest is in the runs' metrics.json."""


class _Means(NamedTuple):
    """Columns of the first table after the size; None where no run measured them."""

    share: Estimate | None
    wait_s: Estimate | None
    transfer_s: Estimate | None
    hidden_s: Estimate | None
    bytes: Estimate | None
    bus_bytes_per_s: Estimate | None
    line_share: Estimate | None
    measured_share: Estimate | None


_Sizes = Sequence[tuple[Curve, Point, _Means]]


def build(study: Study) -> Section | None:
    """None if no run communicates."""
    points = [
        (curve, point, _means(study, curve, point))
        for curve, point in all_points(study)
        if point.world_size > 1
    ]
    if all(value is None for *_, means in points for value in means):
        return None
    rows = [[*size_values(study, curve, point), *means] for curve, point, means in points]
    table = Table(
        "communication",
        f"Communication of a step, means over ranks and repeats. {_profiled(study, points)}",
        [
            *size_columns(study),
            Column("share", "share of step", "share", "communication-share"),
            Column("wait_s", "waiting for peers", "s", "exposed-communication"),
            Column("transfer_s", "data transfer", "s", "exposed-communication"),
            Column("hidden_s", "hidden", "s", "hidden-communication"),
            Column("bytes", "payload per rank", "B"),
            Column("bus_bytes_per_s", "bus bandwidth", "B/s", "bus-bandwidth"),
            Column("line_share", "of line rate", "share", "line-share"),
            Column("measured_share", "of measured rate", "share", "measured-share"),
        ],
        rows,
        [sources(study, curve, point) for curve, point, _ in points],
    )
    collectives = _collectives(study, points)
    conclusion = _conclusion(study, points)
    figure = _figure(study, points)
    return Section(
        "communication",
        "Communication",
        conclusion,
        tables=[table, *([collectives] if collectives.rows else [])],
        figures=[figure] if figure else [],
    )


def _means(study: Study, curve: Curve, point: Point) -> _Means:
    summaries = _summaries(study, curve, point)
    bus = over_repeats(point, [each.bus_bytes_per_s for each in summaries])
    rate = _line_rate(study, curve, point)
    return _Means(
        share=phases_share(study, curve, point, ["comm_wait_s", "comm_transfer_s"]),
        wait_s=phases_s(study, curve, point, ["comm_wait_s"]),
        transfer_s=phases_s(study, curve, point, ["comm_transfer_s"]),
        hidden_s=over_repeats(point, [each.hidden_s for each in summaries]),
        bytes=over_repeats(point, [each.bytes for each in summaries]),
        bus_bytes_per_s=bus,
        line_share=bus.scaled(1 / rate) if bus and rate else None,
        measured_share=_measured_share(study, curve, point),
    )


def _measured_share(study: Study, curve: Curve, point: Point) -> Estimate | None:
    """Bus bandwidth / rate of the slowest link that the run itself measured before its first step."""
    bandwidths, slowest = [], []
    for row in study.runs_of(curve, point):
        metrics = study.metrics.get((curve.sweep, row["run"]))
        bus = metrics.comm.bus_bytes_per_s if metrics is not None and metrics.comm is not None else None
        rates = [link.bytes_per_s for link in read_link_rates(Path(row["path"]))]
        if bus is not None and rates:
            bandwidths.append(bus)
            slowest.append(min(rates))
    return of_steps(point, ratio_of_means(bandwidths, slowest)) if slowest else None


def _profiled(study: Study, points: _Sizes) -> str:
    """Steps behind the columns."""
    text = "Exposed time is measured in every step; hidden time, payload and bandwidth in profiled steps"
    counts = [each.sampled_steps for curve, point, _ in points for each in _summaries(study, curve, point)]
    if not counts:
        return f"{text}."
    low, high = min(counts), max(counts)
    return f"{text}, {low if low == high else f'{low} to {high}'} of a run."


def _line_rate(study: Study, curve: Curve, point: Point) -> float | None:
    """Bytes per second of the slowest repeat's line; None where it is unknown, and on one node."""
    if point.nodes < 2:
        return None
    lines = [line_rate_bytes_per_s(Path(row["path"])) for row in study.runs_of(curve, point)]
    return min((rate for rate in lines if rate is not None), default=None)


def _summaries(study: Study, curve: Curve, point: Point) -> list[CommSummary]:
    metrics = (study.metrics.get((curve.sweep, run)) for run in point.runs)
    return [each.comm for each in metrics if isinstance(each, Metrics) and each.comm is not None]


def _collectives(study: Study, points: _Sizes) -> Table:
    rows: list[list[Value]] = []
    links: list[list[RunLink]] = []
    for curve, point, _ in points:
        by_key: dict[tuple[str, int, str], list[CollectiveSummary]] = {}
        for summary in _summaries(study, curve, point):
            for each in summary.collectives:
                by_key.setdefault((each.kind, each.bucket, each.dimension), []).append(each)
        ordered = sorted(by_key.items(), key=lambda item: -statistics.fmean(each.total_s for each in item[1]))
        for (kind, bucket, dimension), found in ordered[:_LISTED]:
            rows.append(
                [
                    *size_values(study, curve, point),
                    f"{kind} {bucket}" + ("" if dimension == "world" else f" ({dimension})"),
                    found[0].bytes,
                    over_repeats(point, [each.total_s for each in found]),
                    over_repeats(point, [each.hidden_s for each in found]),
                    over_repeats(point, [each.exposed_s for each in found]),
                    over_repeats(point, [each.bus_bytes_per_s for each in found]),
                ]
            )
            links.append(sources(study, curve, point))
    return Table(
        "collectives",
        f"Collectives of profiled steps, the {_LISTED} longest of each size, means over steps, ranks "
        "and repeats; bandwidth by the rank with the shortest duration. Collectives that run at the same "
        "time each count in full, so their sum can exceed the communication of the step.",
        [
            *size_columns(study),
            Column("collective", "collective"),
            Column("bytes", "bytes", "B"),
            Column("total_s", "duration", "s"),
            Column("hidden_s", "hidden", "s", "hidden-communication"),
            Column("exposed_s", "exposed", "s", "exposed-communication"),
            Column("bus_bytes_per_s", "bus bandwidth", "B/s", "bus-bandwidth"),
        ],
        rows,
        links,
    )


def _conclusion(study: Study, points: _Sizes) -> str:
    """Share of the step and of hidden communication at the largest measured size of the leading curve, and
    the range of the hidden share over configurations."""
    lead = study.leading_curve
    ordered = [each for each in points if each[0] is not lead] + [each for each in points if each[0] is lead]
    for curve, point, means in reversed(ordered):
        if means.share is None:
            continue
        name = point_name(study, curve, point)
        text = f"On {name}, exposed communication takes {percent(means.share.value, 0)} of the step"
        wait_s, transfer_s, hidden_s = (_seconds(value) for value in means[1:4])
        exposed_s = wait_s + transfer_s
        if means.wait_s and means.transfer_s and exposed_s > 0:
            text += f": {seconds(wait_s)} waiting for peers and {seconds(transfer_s)} transfer"
        covered = ""
        if means.hidden_s is not None and hidden_s + exposed_s > 0:
            hidden = percent(hidden_s / (hidden_s + exposed_s), 0)
            covered = f"{hidden} of all communication is hidden under compute."
        return sentence([text + ".", covered, _most_hidden(study, points, point)])
    return "Exposed communication was not measured."


def _most_hidden(study: Study, points: _Sizes, shown: Point) -> str:
    """The configuration that hides least and that which hides most, at the size of `shown`; empty for one."""
    shares = []
    for curve, point, means in points:
        whole_s = sum(map(_seconds, means[1:4]))
        if point.devices == shown.devices and means.hidden_s is not None and whole_s > 0:
            shares.append((_seconds(means.hidden_s) / whole_s, curve.label))
    if len(shares) < 2:
        return ""
    (low, least), (high, most) = min(shares), max(shares)
    return f"At this size, {most} hides most ({percent(high, 0)}), {least} least ({percent(low, 0)})."


def _seconds(value: Estimate | None) -> float:
    return 0.0 if value is None else value.value


_KINDS = (("waiting for peers", "ph-wait"), ("data transfer", "ph-transfer"), ("hidden", "ph-hidden"))
"""Segments of a bar: the fields of `_Means` from `wait_s` to `hidden_s`."""


def _exposed(study: Study, points: _Sizes) -> str:
    """Exposed seconds of the configuration and size with the smallest, and with the largest."""
    found = [
        (phases_s(study, curve, point, ["comm_wait_s", "comm_transfer_s"]), point_name(study, curve, point))
        for curve, point, _ in points
    ]
    known = [(exposed_s, name) for exposed_s, name in found if exposed_s is not None]
    if not known:
        return "Exposed communication was not measured."
    (least_s, least), (most_s, most) = (pick(known, key=lambda each: each[0].value) for pick in (min, max))
    longest = f"{cell(most_s, 's').in_text} a step on {most}"
    if least_s is most_s:
        return f"Exposed communication takes {longest}."
    return f"Exposed communication takes from {cell(least_s, 's').in_text} on {least} to {longest}."


def _figure(study: Study, points: _Sizes) -> Figure | None:
    shown = [at for at in range(len(_KINDS)) if any(means[1 + at] is not None for *_, means in points)]
    hidden = len(_KINDS) - 1 in shown
    longest = max(sum(map(_seconds, means[1:4])) for *_, means in points)
    if longest <= 0:
        return None
    factor, unit = time_scale(longest)
    rows = []
    for curve, point, means in points:
        name, parts = point_name(study, curve, point), []
        for at in shown:
            (label, colour), length_s = _KINDS[at], _seconds(means[1 + at])
            parts.append((length_s * factor, colour, f"{name}: {label} {seconds(length_s)}"))
        rows.append((curve, point, stacked(parts), seconds(sum(map(_seconds, means[1:4])))))
    return bar_chart(
        study,
        "communication",
        "Hidden and exposed communication" if hidden else "Exposed communication",
        _exposed(study, points),
        grouped_rows(study, rows),
        Axis(f"communication in a step ({unit})", 0.0, 1.2 * longest * factor),
        [LegendItem(*_KINDS[at]) for at in shown],
        alt="Communication of a step by size: " + plural(len(rows), "bar"),
        data="communication",
        reading=_HIDDEN if hidden else "",
    )
