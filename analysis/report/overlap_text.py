"""Sentences and table rows about runs that overlapped in time on one node."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.report.model import RunOverlap
from analysis.units import plural, span

NAMED_OVERLAPS = 3
"""Pairs of overlapping runs that the warning names; the table has more."""

LISTED_OVERLAPS = 50
"""Rows of the table of overlapping runs; `report.json` has all."""


def warning(overlaps: Sequence[RunOverlap], sweeps: int) -> list[str]:
    """The warning of the report, if there is one. `sweeps`: number of sweeps in the report."""
    if not overlaps:
        return []
    named = [
        f"{_short(each.run, sweeps)} and {_short(each.other, sweeps)} "
        f"({span(each.seconds)} on {_hosts(each.hosts)})"
        for each in overlaps[:NAMED_OVERLAPS]
    ]
    more = len(overlaps) - len(named)
    pairs = "; ".join(named) + (f"; and {plural(more, 'more pair')}" if more else "")
    shared = "processors, memory bandwidth and network interfaces"
    same = sum(each.gpus == "same" for each in overlaps)
    if same:
        shared += f", and {plural(same, 'pair')} could use the same GPU"
    return [
        f"Runs overlapped in time on one machine and may have slowed each other down: {pairs}. They shared "
        f"its {shared}. Run them one at a time (--serial), or on nodes of their own (profile key "
        "exclusive)."
    ]


def rows(overlaps: Sequence[RunOverlap], sweeps: int) -> list[list[str | float]]:
    """Rows of the table of overlapping runs: both runs, nodes, seconds, GPUs."""
    gpus = {"same": "the same", "different": "different", "unknown": "\N{EN DASH}"}
    return [
        [
            _short(each.run, sweeps),
            _short(each.other, sweeps),
            _hosts(each.hosts),
            each.seconds,
            gpus[each.gpus],
        ]
        for each in overlaps[:LISTED_OVERLAPS]
    ]


def heading_line(overlaps: Sequence[RunOverlap]) -> str:
    """Heading line of the table of overlapping runs."""
    left = len(overlaps) - LISTED_OVERLAPS
    more = f" {plural(left, 'further pair')} of a shorter time: see report.json." if left > 0 else ""
    return f"Pairs of runs whose attempts overlapped on one machine, by the times in attempt.json.{more}"


def _hosts(names: Sequence[str]) -> str:
    more = len(names) - NAMED_OVERLAPS
    return ", ".join(names[:NAMED_OVERLAPS]) + (f" and {plural(more, 'more node')}" if more > 0 else "")


def _short(run: str, sweeps: int) -> str:
    """The run's name, with its sweep if the report covers several."""
    return run if sweeps > 1 else run.partition("/")[2]
