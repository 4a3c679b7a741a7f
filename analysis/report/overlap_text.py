"""Sentences and table rows about runs that overlapped in time on one node."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.read.attempts import one_machine_of
from analysis.report.model import RunOverlap
from analysis.units import listed, plural, span

NAMED_HOSTS = 3
"""Hosts of a pair of overlapping runs that are named."""

LISTED_OVERLAPS = 50
"""Rows of the table of overlapping runs; `report.json` has all."""


def warning(overlaps: Sequence[RunOverlap], included: pd.DataFrame) -> list[str]:
    """The warning of the report, if there is one, with the sizes whose runs overlapped."""
    if not overlaps:
        return []
    first = overlaps[0]
    several = included["sweep"].nunique()
    pair = f"{_short(first.run, several)} and {_short(first.other, several)}"
    longest = f"{pair} ({span(first.seconds)} on {_hosts(first.hosts)})"
    more = len(overlaps) - 1
    others = f", and {plural(more, 'more pair')} (see Runs)" if more else ""
    shared = "processors, memory bandwidth and network interfaces"
    same = sum(each.gpus == "same" for each in overlaps)
    if same:
        shared += f", and {plural(same, 'pair')} could use the same GPU"
    # nodes that are one machine stay so, whichever of them a job has
    one_machine = one_machine_of(list(included.loc[_overlapped(overlaps, included), "path"]))
    nodes = "" if one_machine else ", or on nodes of their own (profile key exclusive)"
    return [
        f"{_sizes(overlaps, included)} They shared its {shared}: {longest}{others}. Run them one at a time "
        f"(--serial){nodes}."
    ]


def _overlapped(overlaps: Sequence[RunOverlap], included: pd.DataFrame) -> pd.Series[bool]:
    """Whether each run overlapped with another one."""
    names = {name for each in overlaps for name in (each.run, each.other)}
    return (included["sweep"] + "/" + included["run"]).isin(names)


def _sizes(overlaps: Sequence[RunOverlap], included: pd.DataFrame) -> str:
    """The node counts whose runs overlapped, and those whose runs had their machines alone."""
    shared = _overlapped(overlaps, included)
    loaded = sorted(set(included.loc[shared, "nodes"]))
    alone = sorted(set(included["nodes"]) - set(loaded))
    text = "overlapped in time on one machine and may have slowed each other down"
    if not alone:
        return f"Runs {text}."
    return (
        f"Runs at {_node_counts(loaded)} {text}; those at {_node_counts(alone)} ran alone, so ratios between "
        "the two compare runs that overlapped with runs that did not."
    )


def _node_counts(counts: Sequence[int]) -> str:
    named = listed([str(int(each)) for each in counts])
    return f"{named} {'node' if list(counts) == [1] else 'nodes'}"


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
    more = len(names) - NAMED_HOSTS
    return ", ".join(names[:NAMED_HOSTS]) + (f" and {plural(more, 'more node')}" if more > 0 else "")


def _short(run: str, sweeps: int) -> str:
    """The run's name, with its sweep if the report covers several."""
    return run if sweeps > 1 else run.partition("/")[2]
