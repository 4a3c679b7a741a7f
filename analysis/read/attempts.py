"""What the attempts of a run recorded about their nodes: pre-flight, hosts, machine, network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.units import binary_bytes
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir

PREFLIGHT_COLUMNS: dict[str, str] = {
    "preflight": "string",  # passed, warned, refused, skipped; warned if any start had warnings
    "preflight_warning": "string",  # first problem of that start
    "preflight_s": "Float64",  # duration on node 0, over all attempts
    "rejected": "boolean",  # finished and measured, but left out by `reject_warned`
}


def preflight_columns(run: RunDir) -> dict[str, Any]:
    """Values of `PREFLIGHT_COLUMNS` by `preflight.json` of all attempts.

    The steps of each attempt that started may be in the figures, so one with warnings counts more than later
    ones without. Nothing was trained after a refusal.
    """
    found = [record for attempt in run.attempts() if (record := read_json_or_none(attempt.preflight))]
    if not found:
        return {"rejected": False}
    started = [record for record in found if record.get("verdict") != "refused"]
    warned = (record for record in started if record.get("verdict") == "warned")
    shown = next(warned, (started or found)[-1])
    problems = shown.get("problems") or []
    return {
        "preflight": shown.get("verdict"),
        "preflight_warning": problems[0].get("message") if problems else None,
        "preflight_s": sum(float(record.get("seconds") or 0.0) for record in found),
        "rejected": False,
    }


def reject_warned(table: pd.DataFrame) -> pd.DataFrame:
    """A table of `load` in which runs whose pre-flight had warnings are left out, with the reason in `note`.

    Runs without a pre-flight stay, as nothing is known against their nodes.

    Raises:
        ConfigError: no finished run would be left.
    """
    warned = table["included"] & (table["preflight"] == "warned").fillna(value=False)
    if not warned.any():
        return table
    if not (table["included"] & ~warned).any():
        first = table[warned].iloc[0]
        raise ConfigError(
            f"no run is left: all finished runs ({int(warned.sum())}) had warnings in their pre-flight, such "
            f"as {first['sweep']}/{first['run']}: {first['preflight_warning']}",
            at="--reject-warned",
        )
    reasons = "rejected for its pre-flight: " + table["preflight_warning"].fillna("a warning")
    earlier = table["note"].where(table["note"] == "", "; " + table["note"])
    return table.assign(
        included=table["included"] & ~warned,
        rejected=warned,
        note=table["note"].mask(warned, reasons + earlier),
    )


class RunHosts:
    """Names of the nodes of each attempt of a run, as codes for categorical columns.

    The names are those of the attempt's record (Slurm's names of nodes), or else of the nodes' own records.
    """

    def __init__(self, run: RunDir, ranks_per_node: int | None, by_rank: Sequence[str] = ()) -> None:
        self._run = run
        self._ranks_per_node = ranks_per_node
        self._by_rank = by_rank
        """Host of each rank in an ingested run."""
        self._codes = {"": 0}
        self._of_attempt: dict[tuple[int, int], list[str]] = {}

    @property
    def names(self) -> list[str]:
        """The name for each code; the code 0 is an unknown host."""
        return [*self._codes]

    def of_ranks(self, attempt: NDArray[Any], rank: NDArray[Any]) -> NDArray[np.int32]:
        """The code of the host of each rank in an attempt; both arrays have the same length."""
        if len(self._by_rank):
            return np.array([self._code(name) for name in self._by_rank], dtype=np.int32)[rank]
        codes = np.zeros(rank.size, dtype=np.int32)
        if not self._ranks_per_node:
            return codes
        node = rank // self._ranks_per_node
        for number in np.unique(attempt):
            rows = attempt == number
            names = self._hosts(int(number), int(node[rows].max()) + 1)
            codes[rows] = np.array([self._code(name) for name in names], dtype=np.int32)[node[rows]]
        return codes

    def of_node(self, attempt: int, node: int) -> int:
        """The code of one node of an attempt."""
        return self._code(self._hosts(attempt, node + 1)[node])

    def _code(self, name: str) -> int:
        return self._codes.setdefault(name, len(self._codes))

    def _hosts(self, attempt: int, nodes: int) -> list[str]:
        key = (attempt, nodes)
        if key not in self._of_attempt:
            self._of_attempt[key] = self._read(attempt, nodes)
        return self._of_attempt[key]

    def _read(self, number: int, nodes: int) -> list[str]:
        attempt = self._run.attempt(number)
        listed = (read_json_or_none(attempt.record) or {}).get("nodes")
        if isinstance(listed, list) and len(listed) >= nodes:
            return [str(host) for host in listed[:nodes]]
        records = (read_json_or_none(attempt.node_record(node)) for node in range(nodes))
        return [str((record or {}).get("host", "")) for record in records]


Machine = Literal["mini-cluster", "local"]
_CONFIG = re.compile(r"/run/disttrain-([^/]+)/slurm\.conf")
"""Configuration of a mini-cluster's Slurm, whose nodes are network namespaces."""


def one_machine(run: RunDir) -> Machine | None:
    """The machine of the last attempt of a run; None for a run on one node, on several machines, or without
    a record."""
    for attempt in run.attempts()[-1:]:
        record = read_json_or_none(attempt.record) or {}
        if len(record.get("nodes") or []) < 2:
            return None
        if record.get("cluster") == "local":
            return "local"
        if minicluster_of(attempt) is not None:
            return "mini-cluster"
    return None


def minicluster_of(attempt: Attempt) -> str | None:
    """Name of the mini-cluster that the attempt ran on; None for another cluster, or without a record."""
    node = read_json_or_none(attempt.node_record(0)) or {}
    found = _CONFIG.fullmatch(str((node.get("slurm") or {}).get("SLURM_CONF")))
    return found[1] if found else None


def one_machine_of(paths: Sequence[str]) -> list[Machine]:
    """`one_machine` of each run directory that has it."""
    found = (one_machine(RunDir(Path(path))) for path in paths)
    return [each for each in found if each is not None]


def node_facts(paths: Iterable[str]) -> dict[str, list[str]]:
    """Values by property, over the last attempts of these runs; without properties that none records."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for attempt in RunDir(Path(path)).attempts()[-1:]:
            for name, value in _facts(attempt).items():
                found.setdefault(name, []).append(value)
    return {name: sorted(set(values)) for name, values in found.items()}


def _facts(attempt: Attempt) -> dict[str, str]:
    node = read_json_or_none(attempt.node_record(0)) or {}
    record = read_json_or_none(attempt.record) or {}
    mini = minicluster_of(attempt)
    slurm = (node.get("slurm") or {}).get("SLURM_CLUSTER_NAME")
    cluster = record.get("cluster")
    if mini is not None:
        cluster = f"Slurm mini-cluster {mini} on one machine"
    elif slurm:
        cluster = f"Slurm cluster {slurm}"
    memory = node.get("memory_bytes")
    facts = {
        "Cluster": cluster,
        "Processor": node.get("processor"),
        "Memory of a node": None if memory is None else binary_bytes(memory),
        "Kernel": node.get("kernel"),
    }
    return {name: str(value) for name, value in facts.items() if value}


_RATE = re.compile(r"([\d.]+)\s*Gb/s", re.IGNORECASE)


def line_rate_bytes_per_s(run: Path) -> float | None:
    """Rate of the fastest network device, on the slowest node of the last attempt: B/s in one direction.

    Adapters for computing count by the rate in their driver's text (`100 Gb/sec (4X EDR)`), other interfaces
    by their speed. Older records have no choice of adapters; all of their adapters count. Interfaces without
    a driver are virtual, and their speed is a constant: 10 Gbit/s of a veth pair. A bond counts as its
    fastest member. None where no driver reports a rate, and without records of nodes.
    """
    rates = []
    for attempt in RunDir(run).attempts()[-1:]:
        for path in attempt.path.glob("node-*.json"):
            record = read_json_or_none(path) if re.fullmatch(r"node-\d+\.json", path.name) else None
            if record is not None and (rate := _fastest(record)) is not None:
                rates.append(rate)
    return min(rates, default=None)


def _fastest(record: dict[str, Any]) -> float | None:
    adapters = [each for each in record.get("fabrics", []) if each.get("for_compute") is not False]
    texts = [str(each.get("rate") or "") for each in adapters]
    rates = [float(found[1]) * 1e9 / 8 for text in texts if (found := _RATE.search(text))]
    speeds = [each.get("speed_mbit") for each in record.get("interfaces", []) if each.get("driver")]
    rates += [speed * 1e6 / 8 for speed in speeds if speed]
    return max(rates, default=None)
