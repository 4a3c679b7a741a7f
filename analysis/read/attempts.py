"""Attempts of a run: times, nodes, links between them, and the checks before the ranks started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from analysis.read.lines import Columns, read_columns
from analysis.read.record import T, read_record, read_struct
from disttrain.records.node import NodeRecord, Preflight
from disttrain.records.run_directory import Attempt, RunDir

_MINICLUSTER = re.compile(r"/run/disttrain-([^/]+)/slurm\.conf")
"""Configuration of a mini-cluster's Slurm, whose nodes are network namespaces of one machine."""
_RATE = re.compile(r"([\d.]+)\s*Gb/s", re.IGNORECASE)


class _Record(msgspec.Struct):
    """`disttrain.records.attempt.AttemptRecord`, as far as analysis reads it."""

    started: datetime | None = None
    ended: datetime | None = None
    nodes: list[str] = []
    cluster: str | None = None


class _Progress(msgspec.Struct):
    attempt: int | None = None
    updated: float | None = None


@dataclass(frozen=True)
class RunAttempt:
    """One attempt. Files of its nodes are read at first use."""

    files: Attempt
    record: _Record
    preflight: Preflight | None
    progress_s: float | None
    """Time of its last progress, in seconds since the epoch; None without one."""
    problems: list[str] = field(compare=False)
    """Receives messages on records that cannot be read."""

    @property
    def number(self) -> int:
        return self.files.number

    @property
    def span(self) -> tuple[float, float] | None:
        """Start and end in seconds since the epoch. Without a recorded end, the end is the last progress, or
        else the start. None without a recorded start."""
        if self.record.started is None:
            return None
        start = self.record.started.timestamp()
        ended = self.record.ended.timestamp() if self.record.ended else self.progress_s
        return start, start if ended is None else ended

    @cached_property
    def _names(self) -> list[str]:
        return os.listdir(self.files.path)

    def numbered(self, pattern: str) -> list[tuple[int, Path]]:
        """The files of ranks or nodes by number, for a pattern such as `steps-*.jsonl`."""
        number = re.compile(pattern.replace("*", "([0-9]+)"))
        matches = filter(None, map(number.fullmatch, self._names))
        return sorted((int(match[1]), self.files.path / match[0]) for match in matches)

    @cached_property
    def node_records(self) -> list[NodeRecord]:
        """Records of the nodes by node rank, empty ones where they are missing; at least one."""
        files = dict(self.numbered("node-*.json"))
        nodes = max([1, len(self.record.nodes), *(number + 1 for number in files)])
        found = {
            node: _known(path, read_record(path, NodeRecord), self.problems) for node, path in files.items()
        }
        return [found.get(node) or NodeRecord(node=node, host="", taken="") for node in range(nodes)]

    def hosts(self, nodes: int) -> list[str]:
        """Names of the nodes by node rank, by its record or else their own; "" where unknown."""
        names = self.record.nodes
        if len(names) < nodes:
            names = [node.host for node in self.node_records] + [""] * nodes
        return names[:nodes]

    def gpus(self, node: int) -> frozenset[str]:
        """UUIDs of the GPUs visible on a node; empty without GPUs, and where they are not recorded."""
        return frozenset(gpu.uuid for gpu in self.node_records[node].gpus)

    @property
    def minicluster(self) -> str | None:
        """Name of the mini-cluster that it ran on; None for another cluster, or without a record."""
        match = _MINICLUSTER.fullmatch(self.node_records[0].slurm.get("SLURM_CONF", ""))
        return match[1] if match else None

    @property
    def one_machine(self) -> bool:
        """Whether its nodes are several parts of one machine."""
        return len(self.record.nodes) > 1 and (self.record.cluster == "local" or self.minicluster is not None)

    @property
    def cluster(self) -> str | None:
        if self.minicluster is not None:
            return f"Slurm mini-cluster {self.minicluster} on one machine"
        name = self.node_records[0].slurm.get("SLURM_CLUSTER_NAME")
        return f"Slurm cluster {name}" if name else self.record.cluster

    @property
    def line_rate_bytes_per_s(self) -> float | None:
        """Rate of the fastest network device on the slowest node, in one direction; None if no driver reports
        one.

        Adapters for computing count by the rate in their driver's text (`100 Gb/sec (4X EDR)`), other
        interfaces by their speed. Interfaces without a driver are virtual, and their speed is a constant.
        """
        rates = []
        for node in self.node_records:
            texts = [each.rate or "" for each in node.fabrics if each.for_compute is not False]
            gbit = [float(match[1]) for text in texts if (match := _RATE.search(text))]
            gbit += [(each.speed_mbit or 0) / 1e3 for each in node.interfaces if each.driver]
            rates.append(max(gbit, default=0) * 1e9 / 8)
        return min(filter(None, rates), default=None)

    @property
    def link_rates(self) -> dict[tuple[str, str], float]:
        """Bytes per second from one node to another, as the pre-flight measured them; empty without."""
        measured = self.preflight.bandwidth if self.preflight else None
        links = measured.links if measured else []
        hosts = self.hosts(1 + max((link.source for link in links), default=0))
        return {(hosts[link.source], hosts[link.target]): link.bytes_per_s for link in links}


def _known(path: Path, found: tuple[T | None, str], problems: list[str]) -> T | None:
    """A record; its problem is appended to `problems` unless the file is missing."""
    record, problem = found
    if problem and path.exists():
        problems.append(f"{path.parent}/{problem}")
    return record


def read_attempts(run: RunDir, problems: list[str]) -> tuple[RunAttempt, ...]:
    """The attempts of a run, oldest first."""
    progress = _known(run.progress, read_struct(run.progress, _Progress), problems) or _Progress()
    return tuple(
        RunAttempt(
            files,
            _known(files.record, read_struct(files.record, _Record), problems) or _Record(),
            _known(files.preflight, read_record(files.preflight, Preflight), problems),
            progress.updated if progress.attempt == files.number else None,
            problems,
        )
        for files in run.attempts()
    )


def read_records(
    attempts: Iterable[RunAttempt], pattern: str, fields: Mapping[str, Any], problems: list[str]
) -> Columns:
    """The records of JSON Lines files as `read_columns` has them, in the order of `attempt`, `number` of the
    rank or node of the file, and line."""
    parts = []
    for attempt in attempts:
        for number, path in attempt.numbered(pattern):
            part = read_columns(path, fields, problems)
            size = min(map(len, part.values()))
            parts.append(part | {"attempt": np.full(size, attempt.number), "number": np.full(size, number)})
    return {
        name: np.concatenate([np.empty(0), *(part[name] for part in parts)])
        for name in (*fields, "attempt", "number")
    }


def host_names(
    attempts: Iterable[RunAttempt], attempt: NDArray[Any], node: NDArray[Any]
) -> NDArray[np.object_]:
    """Name of each node in an attempt, both of shape (records,); empty if unknown."""
    hosts = np.full(node.size, "", dtype=object)
    for each in attempts:
        rows = attempt == each.number
        if rows.any():
            hosts[rows] = np.array(each.hosts(int(node[rows].max()) + 1), dtype=object)[node[rows]]
    return hosts


def preflight_columns(attempts: Sequence[RunAttempt]) -> dict[str, Any]:
    """Verdict, first warning and duration of the checks before the ranks started.

    The steps of each attempt that started may be in the figures, so one with warnings counts more than later
    ones without. Nothing was trained after a refusal.
    """
    records = [each.preflight for each in attempts if each.preflight is not None]
    if not records:
        return {}
    started = [record for record in records if record.verdict != "refused"]
    warned = (record for record in started if record.verdict == "warned")
    shown = next(warned, (started or records)[-1])
    return {
        "preflight": shown.verdict,
        "preflight_warning": shown.problems[0].message if shown.problems else None,
        "preflight_s": sum(record.seconds for record in records),
    }
