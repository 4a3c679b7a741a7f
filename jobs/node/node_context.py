"""One node of a job, as its agent and its checks see it. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disttrain.records.run_directory import RunDir
from jobs.node.allocation import Allocation

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class NodeContext:
    """One node of a job."""

    run: RunDir
    submission: int
    rank: int
    hosts: Sequence[str]
    """Names of all nodes of the job, in rank order."""
    allocation: Allocation | None
    """None in a job that a supervisor runs on one machine."""

    @property
    def restart(self) -> int:
        """Number of earlier starts of the job."""
        return self.allocation.restart if self.allocation else 0

    @property
    def one_machine(self) -> bool:
        """Whether all nodes of the job are this machine."""
        return self.allocation is None or set(self.hosts) == {LOOPBACK}
