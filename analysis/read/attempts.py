"""Attempts of a run: times, nodes, links between them, and the checks before the ranks started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from analysis.read.lines import read_struct
from analysis.units import binary_bytes
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

    @property
    def line_rate_bytes_per_s(self) -> float | None:
        """Rate of its fastest network device.

        Adapters for computing count by the rate in their driver's text (`100 Gb/sec (4X EDR)`), other
        interfaces by their speed. Interfaces without a driver are virtual, and their speed is a constant.
        """
        texts = [each.rate or "" for each in self.fabrics if each.for_compute is not False]
        rates = [float(match[1]) * 1e9 / 8 for text in texts if (match := _RATE.search(text))]
        rates += [(each.speed_mbit or 0) * 1e6 / 8 for each in self.interfaces if each.driver]
        return max(rates, default=0) or None


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
    def _names(self) -> list[str]:
        return os.listdir(self.files.path)

    def numbered(self, pattern: str) -> list[tuple[int, Path]]:
        """The files of ranks or nodes by number, for a pattern such as `steps-*.jsonl`."""
        prefix, suffix = pattern.split("*")
        middle = slice(len(prefix), -len(suffix))
        names = (name for name in self._names if name.startswith(prefix) and name.endswith(suffix))
        return sorted((int(name[middle]), self.files.path / name) for name in names if name[middle].isdigit())

    @cached_property
    def node_records(self) -> list[_Node]:
        """Records of the nodes by node rank, empty ones where they are missing; at least one."""
        files = dict(self.numbered("node-*.json"))
        nodes = max([1, len(self.record.nodes), *(number + 1 for number in files)])
        found = {node: read_struct(path, _Node, self.problems) for node, path in files.items()}
        return [found.get(node) or _Node() for node in range(nodes)]

    def hosts(self, nodes: int) -> list[str]:
        """Names of the nodes by node rank, by its record or else their own; "" where unknown."""
        names = self.record.nodes
        if len(names) < nodes:
            names = [node.host for node in self.node_records] + [""] * nodes
        return names[:nodes]

    def gpus(self, node: int) -> frozenset[str]:
        """UUIDs of the GPUs visible on a node; empty without GPUs, and where they are not recorded."""
        return frozenset(gpu.uuid for gpu in self.node_records[node].gpus if gpu.uuid)

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
    def facts(self) -> dict[str, str | None]:
        """Cluster, and processor, memory and kernel of the first node; None where they are not recorded."""
        node, cluster = self.node_records[0], self.record.cluster
        if self.minicluster is not None:
            cluster = f"Slurm mini-cluster {self.minicluster} on one machine"
        elif name := node.slurm.get("SLURM_CLUSTER_NAME"):
            cluster = f"Slurm cluster {name}"
        memory = binary_bytes(node.memory_bytes) if node.memory_bytes else None
        return {
            "Cluster": cluster,
            "Processor": node.processor,
            "Memory of a node": memory,
            "Kernel": node.kernel,
        }

    @property
    def line_rate_bytes_per_s(self) -> float | None:
        """Rate of the fastest network device on the slowest node, in one direction; None if no driver reports
        one."""
        rates = (node.line_rate_bytes_per_s for node in self.node_records)
        return min(filter(None, rates), default=None)

    @cached_property
    def links(self) -> Links | None:
        """Measured rates between nodes, whose names are those of the attempt's record where they differ."""
        links = read_struct(self.files.links, Links, self.problems)
        if links is not None and len(set(self.record.nodes)) == len(links.hosts):
            links.hosts = self.record.nodes
        return links


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


def machine_facts(attempts: Iterable[RunAttempt]) -> dict[str, list[str]]:
    """Values of `RunAttempt.facts` by property, over these attempts."""
    facts: dict[str, list[str]] = {}
    for name, value in sorted({item for attempt in attempts for item in attempt.facts.items() if item[1]}):
        facts.setdefault(name, []).append(str(value))
    return facts
