"""A node of a job as its agent has it: the scheduler, the log, and waiting no longer than the job runs.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from disttrain.records.run_directory import RunDir
from jobs.checks.rank_python import RankContainer
from jobs.core import requeue_policy
from jobs.core.journal import utc_now
from jobs.core.packing import Packing

LOOPBACK = "127.0.0.1"
WARNING_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_POLL_S = 0.1
_LONGEST_POLL_S = 2.0
"""Each node of a job reads files of node 0 at these intervals: the first one, and the longest."""
_GROWTH = 1.4
_JITTER = 0.25
LONGEST_JITTER = 1 + _JITTER
"""Longest delay by `jittered`, as a multiple of the delay that is given."""
_QUERY_INTERVAL_S = 5.0
"""Time between two queries of the scheduler, which each waiting node sends."""
T = TypeVar("T")


def log_line(text: str) -> None:
    """Write one line of the agent, with the time. A full disk loses the line, not the agent."""
    with contextlib.suppress(OSError):
        print(f"{utc_now()} agent: {text}", flush=True)


def log_traceback() -> None:
    """Write the traceback of the exception that is being handled."""
    with contextlib.suppress(OSError):
        traceback.print_exc()


def redirect_output(path: Path) -> None:
    """Append stdout and stderr of this process to the file at `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (sys.stdout, sys.stderr):
        os.dup2(log, target.fileno())
    os.close(log)


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

    def container(
        self, record: Mapping[str, Any], folders: Sequence[Path], memory: Path
    ) -> contextlib.AbstractContextManager[RankContainer | None]:
        """The container of the ranks on this node by the run's `run.json`, with these folders at their paths;
        None: they run outside of any. Entering it raises `CannotStart` and `JobEnded`.

        `memory` is the folder that the agent and the ranks share.
        """
        return contextlib.nullcontext()

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
    node_list_command: str
    """Command that lists the nodes of a job."""
    node_rank: int
    nodes: int
    gpus_on_node: str | None
    """As the scheduler has it; None where it counts no GPUs."""
    processors: int | None
    """Of the job on this node, as the scheduler counts them."""
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


@dataclass(frozen=True)
class NodeContext:
    """One node of a job, as its agent and its checks see it."""

    run: RunDir
    submission: int
    rank: int
    hosts: Sequence[str]
    """Names of all nodes of the job, in rank order."""
    allocation: Allocation | None
    """None in a job that a supervisor runs on one machine."""
    packing: Packing | None = None
    """The other runs of the job; None without any."""

    @property
    def restart(self) -> int:
        """Number of earlier starts of the job."""
        return self.allocation.restart if self.allocation else 0

    @property
    def one_machine(self) -> bool:
        """Whether all nodes of the job are this machine."""
        return self.allocation is None or set(self.hosts) == {LOOPBACK}


def block_signals() -> None:
    """Block the signals that `poll_until` and `jobs.node.torchrun` handle."""
    signals = {*WARNING_SIGNALS, *TERMINATION_SIGNALS, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)


class JobEnded(Exception):
    """The job is being ended while this node waits; the message is one line."""

    def __init__(self, message: str, requeued: bool, end_cause: str | None = None) -> None:
        super().__init__(message)
        self.requeued = requeued
        """Whether the scheduler has requeued the job."""
        self.end_cause = end_cause
        """Cause that the scheduler has (`AllocationFacts.end_cause`)."""

    @property
    def exit_code(self) -> int:
        return requeue_policy.EXIT_DONE if self.requeued else requeue_policy.EXIT_FAILED


def jittered(seconds: float) -> float:
    """A delay up to a quarter shorter or longer, so that the nodes of a job do not poll at once."""
    return seconds * random.uniform(1 - _JITTER, LONGEST_JITTER)


def poll_until(poll: Callable[[], T | None], within_s: float, allocation: Allocation | None) -> T | None:
    """Call `poll` until it returns a value, and return that; None after `within_s` seconds.

    Raises `JobEnded` when a pending signal ends the job: a node that waits for a file that never appears
    would stay until SIGKILL. The caller has blocked the signals, which stay pending: a warning is meant for
    the ranks, and `jobs.node.torchrun` handles it.
    """
    deadline, query_at, delay_s = time.monotonic() + within_s, 0.0, _POLL_S
    while (found := poll()) is None:
        now = time.monotonic()
        if now >= query_at and (pending := signal.sigpending().intersection(TERMINATION_SIGNALS)):
            _raise_if_ended(pending, allocation)
            query_at = time.monotonic() + _QUERY_INTERVAL_S
        if now > deadline:
            return None
        time.sleep(jittered(delay_s))
        delay_s = min(_LONGEST_POLL_S, _GROWTH * delay_s)
    return found


def _raise_if_ended(pending: Set[int], allocation: Allocation | None) -> None:
    """Raise `JobEnded` if these signals end the job, by the rules of `jobs.node.torchrun`."""
    facts = allocation.facts() if allocation and signal.SIGTERM in pending else None
    requeued = facts is not None and allocation is not None and facts.restarts > allocation.restart
    is_warning = pending == {signal.SIGTERM} and allocation is not None
    if requeued or not is_warning or (facts is not None and not facts.running):
        what = "requeued" if requeued else "ended"
        end_cause = facts.end_cause if facts is not None else None
        raise JobEnded(f"the job was {what} while this node waited for another one", requeued, end_cause)
