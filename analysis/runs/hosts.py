"""Hosts of the ranks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir


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
