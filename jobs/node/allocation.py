"""The interface of an agent to its job at the scheduler. Standard library only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jobs.node.node_log import log_line


@dataclass(frozen=True)
class AllocationFacts:
    """The state of a job at its scheduler."""

    running: bool
    """False once the scheduler is ending it, for any reason."""
    restarts: int
    """Number of earlier starts; it grows as soon as the job is requeued."""
    end: float | None
    """End of its time, in seconds since the epoch; earlier after a pre-emption."""
    end_cause: Literal["timeout", "lost"] | None = None
    """Cause of its end where the scheduler has one: the time limit, or the death of the batch shell."""


class Allocation(ABC):
    """The job of an agent. Methods that are not abstract answer for a scheduler without that feature."""

    job_id: str
    restart: int
    """Number of earlier starts."""
    node_info_module: str = "jobs.node.node_info"
    """Module that writes the node's record, run with the arguments of `jobs.node.node_info`."""

    @abstractmethod
    def facts(self) -> AllocationFacts | None:
        """The current state of the job, within a few seconds; None if the scheduler does not answer."""

    @abstractmethod
    def requeue(self, until: float, is_current: Callable[[], bool]) -> bool:
        """Requeue the job, with retries until a time in seconds since the epoch; whether it succeeded.

        The job is not requeued once it was started again, or `is_current` returns False.
        """

    def missing_gpus(self, record: Mapping[str, Any]) -> str | None:
        """A message if this node has fewer GPUs than the run requested; `record` is the run's `run.json`."""
        return None

    def nodes_down(self) -> list[str]:
        """Nodes of the job that the scheduler has marked as down."""
        return []

    def node_responds(self, host: str) -> bool:
        """Whether the scheduler's daemon on a node accepts connections."""
        return True

    def node_timeout_s(self) -> float:
        """Seconds after which the scheduler marks a node that does not respond as down."""
        return 300.0

    def end_time(self) -> float | None:
        """End of the job's time, in seconds since the epoch; None if unknown."""
        return None

    def kill_wait_s(self) -> float:
        """Seconds between the scheduler's SIGTERM and its SIGKILL."""
        return 30.0

    def exclude(self, hosts: Sequence[str], formerly: Sequence[str], script: Path) -> None:
        """Keep the requeued job off these hosts if other nodes suffice for its batch script; log the outcome.

        Hosts that this job excluded `formerly`, and that are not among `hosts`, are permitted again.
        """
        if hosts:
            log_line(f"the job may start again on {', '.join(hosts)}: its scheduler excludes no nodes")

    def delay_start(self, delay_s: float) -> None:
        """Set the earliest start of the requeued job, in seconds from now. Logs a refusal."""
        log_line(f"the job starts again at once, not {delay_s:g} s later: its scheduler delays no start")


class CurrentAllocation(Allocation):
    """The job that this process belongs to, where the job's script was submitted by hand."""

    scheduler: str
    """Name of its scheduler."""
    node_rank: int
    nodes: int
    gpus_on_node: str | None
    """As the scheduler has it; None where it counts no GPUs."""
    step: str
    """Tells the starts of a job apart, and jobs that got the same id."""
    submit_folder: Path
    """Working directory of the submitting command."""

    @abstractmethod
    def hosts(self) -> list[str] | None:
        """Names of the job's nodes in rank order; None if the scheduler does not answer."""

    @abstractmethod
    def time_limit_min(self) -> int | None:
        """Time limit in whole minutes; None where there is none, or the scheduler does not answer."""

    @abstractmethod
    def task_module(self) -> str:
        """Module that runs one node of a submitted run, with the arguments `RUN_DIR --submission N`."""
