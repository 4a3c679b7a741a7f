"""What an agent asks of the scheduler that started its job. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class AllocationFacts:
    """A job as its scheduler sees it at this moment."""

    running: bool
    """False once it is being ended, for whatever reason."""
    restarts: int
    """How often it was started before; counted up as soon as it is requeued."""
    end: float | None
    """When its time is up, in seconds since the epoch: earlier than at its start once it is pre-empted."""
    timed_out: bool = False


class Allocation(Protocol):
    """The job that an agent is part of."""

    job_id: str
    restart: int
    """How often it was started before this time."""
    node_info_module: str
    """Module that writes the node's record, run with the arguments of `jobs.node.node_info`."""

    def facts(self) -> AllocationFacts | None:
        """Asked in a few seconds; None if the scheduler does not answer."""

    def missing_gpus(self, record: Mapping[str, Any]) -> str | None:
        """What this node was not given that a run asked for, in one line; `record` is its `run.json`."""

    def nodes_down(self) -> list[str]:
        """Those of the job's nodes that the scheduler has lost sight of."""

    def end_time(self) -> float | None:
        """When the job's time is up, in seconds since the epoch; None if nobody says."""

    def kill_wait_s(self) -> float:
        """How long after a polite end everything is killed."""

    def requeue(self, until: float) -> bool:
        """Have the job started again, trying until then (seconds since the epoch); whether it will be."""
