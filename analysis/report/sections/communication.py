"""Communication: share of the step, hidden and exposed time, bus bandwidth by collective."""

from __future__ import annotations

from itertools import takewhile
from statistics import fmean
from typing import Any

from analysis.report.common import (
    all_points,
    kept,
    metric,
    over_repeats,
    point_name,
    point_table,
    stacked_figure,
    step_figure,
)
from analysis.report.section import Column, Section
from analysis.report.sentences import say
from analysis.results import communication
from analysis.results.curves import Curve, Point, phase_s
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import percent
from disttrain.records.communication import CollectiveSummary

ORDER = 90

_LISTED = 8
"""Collectives listed for each size, longest first; the rest is in the runs' metrics.json."""
_EXPOSED, _HIDDEN, _BUS = "exposed-communication", "hidden-communication", "bus-bandwidth"
_COLUMNS = (
    Column("share", "share of step", "share", "communication-share", get=communication.exposed_share),
    Column("wait_s", "waiting for peers", "s", _EXPOSED, get=phase_s(WAIT), colour="wait"),
    Column("transfer_s", "data transfer", "s", _EXPOSED, get=phase_s(TRANSFER), colour="c1"),
    Column("hidden_s", "hidden", "s", _HIDDEN, get=metric("comm.hidden_s"), colour="hidden"),
    Column("bytes", "payload per rank", "B", get=metric("comm.bytes")),
    Column("bus_bytes_per_s", "bus bandwidth", "B/s", _BUS, get=communication.mean_bus_rate),
    Column("line_share", "of line rate", "share", "line-share", get=communication.line_share),
    Column("measured_share", "of measured rate", "share", "measured-share", get=communication.measured_share),
)


_COLLECTIVE_COLUMNS = (
    Column("collective", "collective"),
    Column("bytes", "bytes", "B"),
    Column("total_s", "duration", "s"),
    Column("hidden_s", "hidden", "s", _HIDDEN),
    Column("exposed_s", "exposed", "s", _EXPOSED),
    Column("bus_bytes_per_s", "bus bandwidth", "B/s", _BUS),
)


def build(study: Study) -> Section | None:
    """None if no run communicates."""
    points = [(curve, point, point) for curve, point in all_points(study) if point.world_size > 1]
    collectives = [(*at[:2], each) for at in points for each in _collectives(at[1])]
    tables = kept(
        point_table(
            study,
            "communication",
            "Communication of a step, means over ranks and repeats.",
            _COLUMNS,
            points,
        ),
        point_table(
            study,
            "collectives",
            f"Collectives of profiled steps, the {_LISTED} longest of each size.",
            _COLLECTIVE_COLUMNS,
            collectives,
        ),
    )
    if not tables:
        return None
    curve = study.leading_curve
    share = communication.exposed_share(curve.points[-1])
    return Section(
        "communication",
        "Communication",
        _conclusion(study, share, curve, curve.points[-1]) if share else "",
        key=percent(share.value) if share else "",
        paragraphs=kept(_longest(study)),
        tables=tables,
        figures=kept(
            stacked_figure(
                study, "communication", "Communication", "communication in a step", _COLUMNS, points
            ),
            step_figure(
                study,
                "communication_ratio",
                "Communication / compute on rank 0",
                [Column("step", "step", "count"), Column("ratio", "communication / compute", "number")],
                lambda run: [(at.step, at.ratio) for at in run.curves["communication_computation_history"]],
            ),
        ),
    )


def _collectives(point: Point) -> list[dict[str, Any]]:
    """Values of `_COLLECTIVE_COLUMNS`, the longest collectives first."""
    by_name: dict[str, list[CollectiveSummary]] = {}
    for one in (one for steps in communication.profiled(point) for one in steps.collectives):
        group = "" if one.dimension == "world" else f" ({one.dimension})"
        by_name.setdefault(f"{one.kind} {one.bucket}{group}", []).append(one)
    longest = sorted(by_name.items(), key=lambda item: -fmean(one.total_s for one in item[1]))
    means = [column.name for column in _COLLECTIVE_COLUMNS[2:]]
    return [
        {"collective": name, "bytes": repeats[0].bytes}
        | {field: over_repeats(point, [getattr(one, field) for one in repeats]) for field in means}
        for name, repeats in longest[:_LISTED]
    ]


def _conclusion(study: Study, share: Estimate, curve: Curve, point: Point) -> str:
    """Share of the step and hidden share at a size, and the size whose profiled steps are least like all."""
    ratios = ((communication.unlike_the_mean(at[1]), point_name(study, *at)) for at in all_points(study))
    return say(
        "communication",
        point_name(study, curve, point),
        share,
        point.phases,
        communication.hidden_share(point),
        [steps.count for steps in communication.profiled(point)],
        max((at for at in ratios if at[0]), default=None),
    )


def _longest(study: Study) -> str:
    """The size of the leading curve from which on communication takes longer than each other phase."""
    curve = study.leading_curve
    points = [*takewhile(_is_longest, reversed(curve.line))]
    return say("communication_longest", point_name(study, curve, points[-1])) if points else ""


def _is_longest(point: Point) -> bool:
    seconds = {name: value or 0.0 for name, value in point.composition.items()}
    return seconds.pop(WAIT) + seconds.pop(TRANSFER) > max(seconds.values())
