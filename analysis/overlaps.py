"""Runs that were at work on one node at the same time: each may have slowed the other down. The nodes of a
mini-cluster are one machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from analysis.read.run import Run

SharedGpus = Literal["same", "different", "unknown"]
"""`different`: no GPU was visible to both runs. `unknown`: one of them recorded none on that node."""
_WORST_LAST: Sequence[SharedGpus] = ("different", "unknown", "same")


@dataclass(frozen=True)
class Interval:
    """The time of one attempt on one node. Times are seconds since the epoch."""

    run: Path
    host: str
    start: float
    end: float
    gpus: frozenset[str] = frozenset()
    """UUIDs of the visible GPUs; empty without GPUs, and where they are not recorded."""


@dataclass(frozen=True)
class Overlap:
    """Two runs and the nodes on which their attempts overlapped in time."""

    runs: tuple[Path, Path]
    hosts: Sequence[str]
    seconds: float
    """Time in which both ran on at least one common node."""
    gpus: SharedGpus


def overlaps_of(runs: Iterable[Run]) -> list[Overlap]:
    """The overlaps of these runs, longest first."""
    return find_overlaps(interval for run in runs for interval in intervals(run))


def intervals(run: Run) -> Iterator[Interval]:
    """One interval for each attempt and node, of attempts whose record has nodes and times."""
    for attempt in run.attempts:
        if attempt.span is not None:
            machine = attempt.minicluster and f"the machine of mini-cluster {attempt.minicluster}"
            for node, host in enumerate(attempt.record.nodes):
                yield Interval(run.folder.path, machine or host, *attempt.span, attempt.gpus(node))


def find_overlaps(given: Iterable[Interval]) -> list[Overlap]:
    """The overlaps of different runs, longest first. Intervals that touch do not overlap."""
    common: dict[tuple[Path, Path], list[tuple[float, float, str, SharedGpus]]] = {}
    ordered = sorted(
        (each for each in given if each.start < each.end), key=lambda each: (each.host, each.start)
    )
    for at, one in enumerate(ordered):
        for other in itertools.islice(ordered, at + 1, None):
            if other.host != one.host or other.start >= one.end:
                break
            if other.run != one.run:
                pair = (min(one.run, other.run), max(one.run, other.run))
                part = (other.start, min(one.end, other.end), one.host, _shared(one, other))
                common.setdefault(pair, []).append(part)
    found = [
        Overlap(
            pair,
            list(dict.fromkeys(host for *_, host, _ in parts)),
            _length_of_union(parts),
            max((gpus for *_, gpus in parts), key=_WORST_LAST.index),
        )
        for pair, parts in common.items()
    ]
    return sorted(found, key=lambda each: (-each.seconds, each.runs))


def _shared(one: Interval, other: Interval) -> SharedGpus:
    if not one.gpus or not other.gpus:
        return "unknown"
    return "same" if one.gpus & other.gpus else "different"


def _length_of_union(parts: Iterable[tuple[float, float, str, SharedGpus]]) -> float:
    length, until = 0.0, float("-inf")
    for start, end, *_ in sorted(parts):
        length += max(0.0, end - max(start, until))
        until = max(until, end)
    return length
