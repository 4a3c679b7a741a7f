"""Communication: share of the step, hidden and exposed time, bus bandwidth by collective."""

from __future__ import annotations

from itertools import takewhile
from statistics import fmean
from typing import Any

from analysis.report.common import (
    Column,
    Section,
    Study,
    bars_figure,
    leading,
    metric,
    over_repeats,
    place_of,
    places,
    say,
    size_table,
    step_figure,
)
from analysis.results import communication
from analysis.results.curves import Point, phase_s
from analysis.results.phases import TRANSFER, WAIT
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
    Column("collective"),
    Column("bytes", "bytes", "B"),
    Column("total_s", "duration", "s"),
    Column("hidden_s", "hidden", "s", _HIDDEN),
    Column("exposed_s", "exposed", "s", _EXPOSED),
    Column("bus_bytes_per_s", "bus bandwidth", "B/s", _BUS),
)


def build(study: Study) -> Section | None:
    """None if no run communicates."""
    items = [(place, place.point) for place in places(study) if place.point.world_size > 1]
    if not items:
        return None
    collectives = [(place, each) for place, point in items for each in _collectives(point)]
    caption = f"Collectives of profiled steps, the {_LISTED} longest of each size."
    listed = size_table(study, "collectives", caption, _COLLECTIVE_COLUMNS, collectives)
    caption = "Communication of a step, means over ranks and repeats."
    table = size_table(study, "communication", caption, _COLUMNS, items)
    place, point = leading(study), leading(study).point
    share = communication.exposed_share(point)
    unlike = [(communication.unlike_the_mean(at.point), at.name) for at in places(study)]
    numbers = (
        point.phases,
        communication.hidden_share(point),
        [steps.count for steps in communication.profiled(point)],
        max((at for at in unlike if at[0]), default=None),
    )
    longest = [*takewhile(_is_longest, reversed(study.leading_curve.line))]
    return Section(
        "communication",
        "Communication",
        say("communication", place.name, share, *numbers),
        key=percent(share.value) if share else "",
        paragraphs=[say("communication_longest", place_of(study, longest[-1]).name) if longest else ""],
        tables=[table, listed],
        figures=[
            *bars_figure(study, table, "Communication", "communication in a step"),
            *step_figure(
                study,
                "communication_ratio",
                "Communication / compute on rank 0",
                [Column("ratio", "communication / compute", "number")],
                lambda run: run.curves["communication_computation_history"],
            ),
        ],
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


def _is_longest(point: Point) -> bool:
    """Whether communication takes longer than each other phase."""
    seconds = {name: value or 0.0 for name, value in point.composition.items()}
    return seconds.pop(WAIT) + seconds.pop(TRANSFER) > max(seconds.values())
