"""Communication: share of the step, hidden and exposed time, bus bandwidth by collective."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from analysis.efficiency import Curve, Point
from analysis.report.common import (
    all_points,
    bar_chart,
    grouped_rows,
    point_name,
    sentence,
    size_columns,
    size_values,
    sources,
)
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.runs.line_rate import line_rate_bytes_per_s
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


def build(study: Study) -> Section | None:
    """None if no run communicates."""
    points = [(curve, point) for curve, point in all_points(study) if point.world_size > 1]
    rows = [_row(study, curve, point) for curve, point in points]
    if not rows or all(value is None for row in rows for value in row[-7:]):
        return None
    table = Table(
        "communication",
        "Communication of a step, means over ranks and repeats. Exposed time is measured in every "
        "step; hidden "
        "time and bytes in profiled steps.",
        [
            *size_columns(study),
            Column("share", "share of step", "share", "communication-share"),
            Column("wait_s", "waiting for peers", "s", "exposed-communication"),
            Column("transfer_s", "data transfer", "s", "exposed-communication"),
            Column("hidden_s", "hidden", "s", "hidden-communication"),
            Column("bytes", "bytes per rank", "B"),
            Column("bus_bytes_per_s", "bus bandwidth", "B/s", "bus-bandwidth"),
            Column("line_share", "of line rate", "share", "line-share"),
        ],
        rows,
        [sources(study, curve, point) for curve, point in points],
    )
    collectives = _collectives(study, points)
    conclusion = _conclusion(study, points)
    figure = _figure(study, points, rows, conclusion)
    return Section(
        "communication",
        "Communication",
        conclusion,
        tables=[table, *([collectives] if collectives.rows else [])],
        figures=[figure] if figure else [],
    )


def _row(study: Study, curve: Curve, point: Point) -> list[Value]:
    wait_s, transfer_s = (point.composition[f"comm_{part}_s"] for part in ("wait", "transfer"))
    exposed = [value for value in (wait_s, transfer_s) if value is not None]
    share = sum(exposed) / point.step_s.value if exposed else None
    summaries = _summaries(study, curve, point)
    hidden_s = statistics.fmean(each.hidden_s for each in summaries) if summaries else None
    sizes = [each.bytes for each in summaries if each.bytes is not None]
    rates = [each.bus_bytes_per_s for each in summaries if each.bus_bytes_per_s is not None]
    return [
        *size_values(study, curve, point),
        share,
        wait_s,
        transfer_s,
        hidden_s,
        statistics.fmean(sizes) if sizes else None,
        statistics.fmean(rates) if rates else None,
        _line_share(study, curve, point, rates),
    ]


def _line_share(study: Study, curve: Curve, point: Point, rates: Sequence[float]) -> float | None:
    """Bus bandwidth as a share of the line rate; None where it is unknown, and on one node."""
    if not rates or point.nodes < 2:
        return None
    lines = [line_rate_bytes_per_s(Path(row["path"])) for row in study.runs_of(curve, point)]
    known = [rate for rate in lines if rate is not None]
    return statistics.fmean(rates) / min(known) if known else None


def _summaries(study: Study, curve: Curve, point: Point) -> list[CommSummary]:
    metrics = (study.metrics.get((curve.sweep, run)) for run in point.runs)
    return [each.comm for each in metrics if isinstance(each, Metrics) and each.comm is not None]


def _collectives(study: Study, points: Sequence[tuple[Curve, Point]]) -> Table:
    rows: list[list[Value]] = []
    for curve, point in points:
        by_key: dict[tuple[str, int, str], list[CollectiveSummary]] = {}
        for summary in _summaries(study, curve, point):
            for each in summary.collectives:
                by_key.setdefault((each.kind, each.bucket, each.dimension), []).append(each)
        ordered = sorted(by_key.items(), key=lambda item: -statistics.fmean(each.total_s for each in item[1]))
        for (kind, bucket, dimension), found in ordered[:_LISTED]:
            rates = [each.bus_bytes_per_s for each in found if each.bus_bytes_per_s is not None]
            rows.append(
                [
                    *size_values(study, curve, point),
                    f"{kind} {bucket}" + ("" if dimension == "world" else f" ({dimension})"),
                    found[0].bytes,
                    statistics.fmean(each.total_s for each in found),
                    statistics.fmean(each.hidden_s for each in found),
                    statistics.fmean(each.exposed_s for each in found),
                    statistics.fmean(rates) if rates else None,
                ]
            )
    return Table(
        "collectives",
        f"Collectives of profiled steps, the {_LISTED} longest of each size, means over steps, ranks "
        "and repeats.",
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
    )


def _conclusion(study: Study, points: Sequence[tuple[Curve, Point]]) -> str:
    """Share of the step and of hidden communication at the largest size that measured it."""
    for curve, point in reversed(points):
        *_, share, wait_s, transfer_s, hidden_s, _, _, _ = _row(study, curve, point)
        if not isinstance(share, float):
            continue
        name = point_name(study, curve, point)
        text = f"On {name}, exposed communication takes {percent(share, 0)} of the step"
        if isinstance(wait_s, float) and isinstance(transfer_s, float) and wait_s + transfer_s > 0:
            text += f": {seconds(wait_s)} waiting for peers and {seconds(transfer_s)} transfer"
        exposed_s = sum(value for value in (wait_s, transfer_s) if isinstance(value, float))
        covered = ""
        if isinstance(hidden_s, float) and hidden_s + exposed_s > 0:
            hidden = percent(hidden_s / (hidden_s + exposed_s), 0)
            covered = f"{hidden} of all communication is hidden under compute."
        return sentence([text + ".", covered])
    return "Exposed communication was not measured."


def _figure(
    study: Study, points: Sequence[tuple[Curve, Point]], table: Sequence[Sequence[Value]], conclusion: str
) -> Figure | None:
    possible = (
        (-6, "waiting for peers", "ph-wait"),
        (-5, "data transfer", "ph-transfer"),
        (-4, "hidden", "ph-hidden"),
    )
    kinds = [kind for kind in possible if any(row[kind[0]] is not None for row in table)]
    hidden = any(label == "hidden" for _, label, _ in kinds)
    totals = [sum(float(v) for v in row[-6:-3] if isinstance(v, float)) for row in table]
    longest = max(totals)
    if longest <= 0:
        return None
    factor, unit = time_scale(longest)
    rows = []
    for (curve, point), values, total in zip(points, table, totals, strict=True):
        name = point_name(study, curve, point)
        parts = [
            (float(values[at] or 0) * factor, colour, f"{name}: {label} {seconds(float(values[at] or 0))}")  # type: ignore[arg-type]
            for at, label, colour in kinds
        ]
        rows.append((curve, point, stacked(parts), seconds(total)))
    return bar_chart(
        study,
        "communication",
        "Hidden and exposed communication" if hidden else "Exposed communication",
        sentence([conclusion, _HIDDEN if hidden else ""]),
        grouped_rows(study, rows),
        Axis(f"communication in a step ({unit})", 0.0, 1.2 * longest * factor),
        [LegendItem(label, colour) for _, label, colour in kinds],
        alt="Communication of a step by size: " + plural(len(rows), "bar"),
    )
