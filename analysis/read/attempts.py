"""Attempts of a run: times, nodes, links between them, and the checks before the ranks started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from analysis.read.lines import read_struct
from analysis.read.steps import Steps
from analysis.units import binary_bytes
from disttrain.records.run_directory import Attempt, RunDir

Machine = Literal["mini-cluster", "local"]
_MINICLUSTER = re.compile(r"/run/disttrain-([^/]+)/slurm\.conf")
"""Configuration of a mini-cluster's Slurm, whose nodes are network namespaces of one machine."""
_RATE = re.compile(r"([\d.]+)\s*Gb/s", re.IGNORECASE)


class _Record(msgspec.Struct):
    """`disttrain.records.attempt.AttemptRecord`, as far as analysis reads it."""

    started: datetime | None = None
    ended: datetime | None = None
    nodes: list[str] = []
    cluster: str | None = None


class _Gpu(msgspec.Struct):
    uuid: str | None = None


class _Interface(msgspec.Struct):
    speed_mbit: float | None = None
    driver: str | None = None


class _Fabric(msgspec.Struct):
    rate: str | None = None
    for_compute: bool | None = None


class _Node(msgspec.Struct):
    """`disttrain.records.node.NodeRecord`, as far as analysis reads it."""

    host: str = ""
    gpus: list[_Gpu] = []
    interfaces: list[_Interface] = []
    fabrics: list[_Fabric] = []
    processor: str | None = None
    memory_bytes: float | None = None
    kernel: str | None = None
    slurm: dict[str, str] = {}


class _Problem(msgspec.Struct):
    message: str = ""


class Preflight(msgspec.Struct):
    """`disttrain.records.preflight.PreflightRecord`, as far as analysis reads it."""

    verdict: str | None = None
    problems: list[_Problem] = []
    seconds: float | None = None


class _Progress(msgspec.Struct):
    attempt: int | None = None
    updated: float | None = None


class _Link(msgspec.Struct):
    source: int
    target: int
    bytes_per_s: float


class Links(msgspec.Struct):
    """`links.json`: hosts by node, and rates between them in bytes per second."""

    hosts: list[str]
    rates: list[_Link]


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
    def node_records(self) -> list[_Node]:
        """Records of the nodes by node rank, empty ones where they are missing."""
        names = [path.stem.removeprefix("node-") for path in self.files.path.glob("node-*.json")]
        numbers = [int(name) for name in names if name.isdigit()]
        nodes = max([len(self.record.nodes), *(number + 1 for number in numbers)])
        return [self._node(number) if number in numbers else _Node() for number in range(nodes)]

    def hosts(self, nodes: int) -> list[str]:
        """Names of the nodes by node rank, by its record or else their own; "" where unknown."""
        names = self.record.nodes
        if len(names) < nodes:
            names = [node.host for node in self.node_records] + [""] * nodes
        return names[:nodes]

    def gpus(self, node: int) -> frozenset[str]:
        """UUIDs of the GPUs visible on a node; empty without GPUs, and where they are not recorded."""
        return frozenset(gpu.uuid for gpu in self._node_at(node).gpus if gpu.uuid)

    @property
    def minicluster(self) -> str | None:
        """Name of the mini-cluster that it ran on; None for another cluster, or without a record."""
        match = _MINICLUSTER.fullmatch(self._node_at(0).slurm.get("SLURM_CONF", ""))
        return match[1] if match else None

    @property
    def machine(self) -> Machine | None:
        """The machine that all its nodes are; None for one node, several machines, or without a record."""
        if len(self.record.nodes) < 2:
            return None
        if self.record.cluster == "local":
            return "local"
        return None if self.minicluster is None else "mini-cluster"

    @property
    def facts(self) -> dict[str, str]:
        """Cluster, and processor, memory and kernel of the first node, as far as they are recorded."""
        node, cluster = self._node_at(0), self.record.cluster
        if self.minicluster is not None:
            cluster = f"Slurm mini-cluster {self.minicluster} on one machine"
        elif name := node.slurm.get("SLURM_CLUSTER_NAME"):
            cluster = f"Slurm cluster {name}"
        memory = None if node.memory_bytes is None else binary_bytes(node.memory_bytes)
        facts = {
            "Cluster": cluster,
            "Processor": node.processor,
            "Memory of a node": memory,
            "Kernel": node.kernel,
        }
        return {name: value for name, value in facts.items() if value}

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
            speeds = [float(match[1]) * 1e9 / 8 for text in texts if (match := _RATE.search(text))]
            wired = [each.speed_mbit for each in node.interfaces if each.driver]
            speeds += [speed * 1e6 / 8 for speed in wired if speed]
            rates += [max(speeds)] if speeds else []
        return min(rates, default=None)

    @cached_property
    def links(self) -> Links | None:
        """Measured rates between nodes, whose names are those of the attempt's record where they differ."""
        links = read_struct(self.files.links, Links, self.problems)
        if links is not None and len(set(self.record.nodes)) == len(links.hosts):
            links.hosts = self.record.nodes
        return links

    def _node_at(self, node: int) -> _Node:
        return self.node_records[node] if node < len(self.node_records) else _Node()

    def _node(self, node: int) -> _Node:
        return read_struct(self.files.node_record(node), _Node, self.problems) or _Node()


def read_attempts(run: RunDir, problems: list[str]) -> tuple[RunAttempt, ...]:
    """The attempts of a run, oldest first."""
    progress = read_struct(run.progress, _Progress, problems) or _Progress()
    return tuple(
        RunAttempt(
            files,
            read_struct(files.record, _Record, problems) or _Record(),
            read_struct(files.preflight, Preflight, problems),
            progress.updated if progress.attempt == files.number else None,
            problems,
        )
        for files in run.attempts()
    )


def hosts_of_ranks(
    attempts: Iterable[RunAttempt], steps: Steps, ranks_per_node: int, by_rank: Sequence[str]
) -> NDArray[np.object_]:
    """Name of the node of each step record, empty if unknown; `by_rank` are the names where they are known by
    rank."""
    hosts = np.full(steps.size, "", dtype=object)
    for each in attempts:
        rows = steps.attempt == each.number
        if rows.any() and (by_rank or ranks_per_node):
            node = steps.rank[rows] // (1 if by_rank else ranks_per_node)
            nodes = int(node.max()) + 1
            names = [*by_rank, *[""] * nodes] if by_rank else each.hosts(nodes)
            hosts[rows] = np.array(names, dtype=object)[node]
    return hosts


def machine_of(attempts: Sequence[RunAttempt]) -> Machine | None:
    """`RunAttempt.machine` of the last attempt; None without one."""
    return attempts[-1].machine if attempts else None


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
        "preflight_s": sum(record.seconds or 0.0 for record in records),
    }


def machine_facts(attempts: Iterable[RunAttempt]) -> Mapping[str, list[str]]:
    """Values of `RunAttempt.facts` by property, over these attempts."""
    facts: dict[str, set[str]] = {}
    for attempt in attempts:
        for name, value in attempt.facts.items():
            facts.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in facts.items()}
