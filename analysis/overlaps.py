"""Runs that were at work on one node at the same time: each may have slowed the other down. The nodes of a
mini-cluster are one machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from analysis.read.run import Run

SharedGpus = Literal["same", "different", "unknown"]
"""`different`: no GPU was visible to both runs. `unknown`: one of them recorded none on that node."""


@dataclass(frozen=True)
class Interval:
    """The time of one attempt on one node. Times are seconds since the epoch."""

    run: Path
    host: str
    start: float
    end: float
    gpus: frozenset[str] = frozenset()
    """UUIDs of the visible GPUs; empty without GPUs, and where they are not recorded."""


@dataclass
class Overlap:
    """Two runs and the nodes on which their attempts overlapped in time."""

    runs: tuple[Path, Path]
    hosts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """Time in which both ran on at least one common node."""
    gpus: SharedGpus = "different"


def overlaps_of(runs: Iterable[Run]) -> list[Overlap]:
    """The overlaps of these runs, longest first."""
    runs = list(runs)
    found = find_overlaps([each for run in runs for each in intervals(run, with_gpus=False)])
    overlapping = {path for each in found for path in each.runs}
    chosen = [run for run in runs if run.folder.path in overlapping]
    return find_overlaps([each for run in chosen for each in intervals(run)])


def intervals(run: Run, *, with_gpus: bool = True) -> Iterator[Interval]:
    """One interval for each attempt and node. The GPUs are in one file for each node, which costs time.

    Attempts without nodes or times in their record are left out.
    """
    for attempt in run.attempts:
        if attempt.span is None:
            continue
        hosts = attempt.record.nodes
        if cluster := attempt.minicluster:
            hosts = [f"the machine of mini-cluster {cluster}"] * len(hosts)
        gpus: dict[str, frozenset[str]] = {}
        for node, host in enumerate(hosts):  # several nodes of one run may be one host
            uuids = attempt.gpus(node) if with_gpus else frozenset()
            gpus[host] = gpus.get(host, frozenset()) | uuids
        for host, uuids in gpus.items():
            yield Interval(run.folder.path, host, *attempt.span, uuids)


def find_overlaps(given: Sequence[Interval]) -> list[Overlap]:
    """The overlaps of different runs, longest first. Intervals that touch do not overlap."""
    common: dict[tuple[Path, Path], list[tuple[float, float]]] = {}
    found: dict[tuple[Path, Path], Overlap] = {}
    by_host = sorted(given, key=lambda each: (each.host, each.start, each.end, each.run))
    for host, members in itertools.groupby(by_host, key=lambda each: each.host):
        for one, other in _pairs(members):
            pair = (min(one.run, other.run), max(one.run, other.run))
            overlap = found.setdefault(pair, Overlap(pair))
            if host not in overlap.hosts:
                overlap.hosts.append(host)
            overlap.gpus = _worse(overlap.gpus, _shared(one, other))
            common.setdefault(pair, []).append((other.start, min(one.end, other.end)))
    for pair, times in common.items():
        found[pair].seconds = _length_of_union(times)
    return sorted(found.values(), key=lambda each: (-each.seconds, each.runs))


def _pairs(members: Iterable[Interval]) -> Iterator[tuple[Interval, Interval]]:
    """Overlapping intervals of different runs, the earlier one first; `members` are sorted by start."""
    active: list[Interval] = []
    for each in members:
        if each.end <= each.start:
            continue
        active = [earlier for earlier in active if earlier.end > each.start]
        yield from ((earlier, each) for earlier in active if earlier.run != each.run)
        active.append(each)


def _shared(one: Interval, other: Interval) -> SharedGpus:
    if not one.gpus or not other.gpus:
        return "unknown"
    return "same" if one.gpus & other.gpus else "different"


def _worse(one: SharedGpus, other: SharedGpus) -> SharedGpus:
    order: tuple[SharedGpus, ...] = ("different", "unknown", "same")
    return max(one, other, key=order.index)


def _length_of_union(times: Sequence[tuple[float, float]]) -> float:
    length, until = 0.0, float("-inf")
    for start, end in sorted(times):
        length += max(0.0, end - max(start, until))
        until = max(until, end)
    return length
