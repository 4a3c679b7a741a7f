"""Runs that were at work on one node at the same time: each may have slowed the other down. The nodes of a
mini-cluster are one machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from analysis.read.attempts import minicluster_of
from disttrain.records import gpu_hours
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir

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


def overlaps_of(runs: Iterable[Path]) -> list[Overlap]:
    """The overlaps of these run directories, longest first."""
    found = find_overlaps(_intervals_of(runs, with_gpus=False))
    overlapping = dict.fromkeys(run for each in found for run in each.runs)
    return find_overlaps(_intervals_of(overlapping, with_gpus=True))


def _intervals_of(runs: Iterable[Path], *, with_gpus: bool) -> list[Interval]:
    return [interval for run in runs for interval in intervals(RunDir(run), with_gpus=with_gpus)]


def intervals(run: RunDir, *, with_gpus: bool = True) -> Iterator[Interval]:
    """One interval for each attempt and node. The GPUs are in one file for each node, which costs time.

    An attempt without a recorded end lasts until its last progress, or has no duration without progress.
    Attempts without nodes or times in their record are left out.
    """
    last_progress = gpu_hours.last_progress(run)
    for record in gpu_hours.attempt_records(run):
        try:
            attempt = run.attempt(record["attempt"])
            start = datetime.fromisoformat(record["started"]).timestamp()
            end = datetime.fromisoformat(gpu_hours.end_of_attempt(record, last_progress)).timestamp()
            hosts = list(record["nodes"])
            if cluster := minicluster_of(attempt):
                hosts = [f"the machine of mini-cluster {cluster}"] * len(hosts)
        except (KeyError, TypeError, ValueError):
            continue
        gpus: dict[str, frozenset[str]] = {}
        for node, host in enumerate(hosts):  # several nodes of one run may be one host
            uuids = _visible_gpus(attempt, node) if with_gpus else frozenset()
            gpus[host] = gpus.get(host, frozenset()) | uuids
        for host, uuids in gpus.items():
            yield Interval(run.path, host, start, end, uuids)


def _visible_gpus(attempt: Attempt, node: int) -> frozenset[str]:
    record = read_json_or_none(attempt.node_record(node)) or {}
    return frozenset(gpu["uuid"] for gpu in record.get("gpus") or [] if gpu.get("uuid"))


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
