"""Communication: share of the step, hidden and exposed time, bus bandwidth by collective."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from analysis.efficiency import Curve, Point
from analysis.losses.waiting import TRANSFER, WAIT, as_recorded
from analysis.profiled_communication import NOTHING_HIDDEN, bus_bandwidth, is_exposed, unrepresentative
from analysis.read.attempts import line_rate_bytes_per_s
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
from analysis.stats.estimates import Estimate, ratio_of_means
from analysis.stragglers.of_runs import read_link_rates
from analysis.study import Study
from analysis.svg.bars import stacked
from analysis.svg.plot import LegendItem
from analysis.svg.scales import Axis
from analysis.units import listed, percent, plural, seconds, time_scale, times
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
    bus = over_repeats(point, _bus_bandwidths(study, curve, point).values())
    rate = _line_rate(study, curve, point)
    return _Means(
        share=phases_share(study, curve, point, [WAIT, TRANSFER]),
        wait_s=phases_s(study, curve, point, [WAIT]),
        transfer_s=phases_s(study, curve, point, [TRANSFER]),
        hidden_s=over_repeats(point, [each.hidden_s for each in summaries]),
        bytes=over_repeats(point, [each.bytes for each in summaries]),
        bus_bytes_per_s=bus,
        line_share=bus.scaled(1 / rate) if bus and rate else None,
        measured_share=_measured_share(study, curve, point),
    )


def _measured_share(study: Study, curve: Curve, point: Point) -> Estimate | None:
    """Bus bandwidth / rate of the slowest link that the run itself measured before its first step."""
    bandwidths, slowest, by_run = [], [], _bus_bandwidths(study, curve, point)
    for row in study.runs_of(curve, point):
        bus = by_run.get(row["run"])
        rates = [link.bytes_per_s for link in read_link_rates(Path(row["path"]))]
        if bus is not None and rates:
            bandwidths.append(bus)
            slowest.append(min(rates))
    return of_steps(point, ratio_of_means(bandwidths, slowest)) if slowest else None


def _bus_bandwidths(study: Study, curve: Curve, point: Point) -> dict[str, float | None]:
    """Bus bandwidth of each repeat that has collectives on record, by run.

    The recorded transfer has no noise floor of waiting: it is that of the rank that waited for nobody.
    """
    transfer_s = as_recorded(study.phase_times(curve, point)).phases[TRANSFER]
    return {
        run: bus_bandwidth(metrics.comm, float(seconds))
        for run, seconds in zip(point.runs, transfer_s, strict=True)
        if (metrics := study.metrics.get((curve.sweep, run))) is not None and metrics.comm is not None
    }


def _profiled(study: Study, points: _Sizes) -> str:
    """Steps behind the columns."""
    text = "Exposed time is measured in every step; hidden time and payload in profiled steps"
    summaries = [each for curve, point, _ in points for each in _summaries(study, curve, point)]
    if not summaries:
        return f"{text}."
    counts = [each.sampled_steps for each in summaries]
    low, high = min(counts), max(counts)
    text += f", {low if low == high else f'{low} to {high}'} of a run"
    if any(map(is_exposed, summaries)):
        return (
            f"{text}. Bandwidth is that of the exposed transfer of all steps where at most "
            f"{percent(NOTHING_HIDDEN, 0)} of communication is hidden, else that of the profiled steps."
        )
    return f"{text}; so is bandwidth."


def _unlike_the_mean(study: Study, points: _Sizes) -> str:
    """Sizes whose profiled steps are far from the mean of all steps; empty without any."""
    found = []
    for curve, point, means in points:
        summaries = _summaries(study, curve, point)
        exposed_s = _seconds(means.wait_s) + _seconds(means.transfer_s)
        ratios = [ratio for each in summaries if (ratio := unrepresentative(each, exposed_s)) is not None]
        if ratios:
            largest = max(ratios, key=lambda ratio: max(ratio, 1 / ratio))
            found.append(f"{times(largest, 1)} on {point_name(study, curve, point)}")
    if not found:
        return ""
    return (
        " Exposed communication of the profiled steps is not that of the mean step: "
        f"{listed(found)}. Their rows are not representative."
    )


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
        "time each count in full, so their sum can exceed the communication of the step."
        f"{_unlike_the_mean(study, points)}",
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
    the hidden share of other configurations there."""
    lead = study.leading_curve
    ordered = [each for each in points if each[0] is not lead] + [each for each in points if each[0] is lead]
    for curve, point, means in reversed(ordered):
        if means.share is None:
            continue
        name = point_name(study, curve, point)
        text = f"On {name}, exposed communication takes {percent(means.share.value, 0)} of the step"
        wait_s, transfer_s = _seconds(means.wait_s), _seconds(means.transfer_s)
        if means.wait_s and means.transfer_s and wait_s + transfer_s > 0:
            text += f": {seconds(wait_s)} waiting for peers and {seconds(transfer_s)} transfer"
        return sentence([text + ".", _hidden(study, curve, point), _others_hide(study, points, curve, point)])
    return "Exposed communication was not measured."


def _hidden_share(study: Study, curve: Curve, point: Point) -> Estimate | None:
    """Hidden share of the communication of the profiled steps, both from the same steps; None without any."""
    known = [each for each in _summaries(study, curve, point) if each.total_s > 0]
    if not known:
        return None
    return of_steps(
        point, ratio_of_means([each.hidden_s for each in known], [each.total_s for each in known])
    )


def _hidden(study: Study, curve: Curve, point: Point) -> str:
    """The hidden share with the number of profiled steps; empty where no step was profiled."""
    share = _hidden_share(study, curve, point)
    if share is None:
        return ""
    known = _summaries(study, curve, point)
    steps, total_s = (
        sum(each.sampled_steps for each in known),
        statistics.fmean(each.total_s for each in known),
    )
    return (
        f"Of {seconds(total_s)} of communication in {plural(steps, 'profiled step')}, "
        f"{cell(share, 'share').in_text} is hidden under compute."
    )


def _others_hide(study: Study, points: _Sizes, shown: Curve, at: Point) -> str:
    """Hidden shares of other configurations with as many devices, the two farthest apart, and the reason
    where a step has one message."""
    shares = []
    for curve, point, _ in points:
        if (
            curve is not shown
            and point.devices == at.devices
            and (share := _hidden_share(study, curve, point))
        ):
            single = all(each.count == 1 for each in _summaries(study, curve, point))
            shares.append((share.value, curve.label, single))
    if not shares:
        return ""
    ends = dict.fromkeys((max(shares), min(shares)))
    text = listed([f"{label} hides {percent(share, 0)}" for share, label, _ in ends])
    alone = [label for _, label, single in ends if single]
    if not alone:
        return f"At this size, {text}."
    one = f"a step of {listed(alone)} has one message, which cannot start before the last gradient is ready"
    return f"At this size, {text}: {one}."


def _seconds(value: Estimate | None) -> float:
    return 0.0 if value is None else value.value


_KINDS = (("waiting for peers", "ph-wait"), ("data transfer", "ph-transfer"), ("hidden", "ph-hidden"))
"""Segments of a bar: the fields of `_Means` from `wait_s` to `hidden_s`."""


def _exposed(study: Study, points: _Sizes) -> str:
    """Exposed seconds of the configuration and size with the smallest, and with the largest."""
    found = [
        (phases_s(study, curve, point, [WAIT, TRANSFER]), point_name(study, curve, point))
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
