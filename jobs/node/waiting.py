"""Wait for another node, but no longer than the job runs. Standard library only.

Signals are blocked while a node waits; `jobs.node.torchrun` handles them once torchrun runs. A node that
waits for a file that never appears would stay until SIGKILL. So the wait checks pending signals and exits
when the job is being ended. It leaves the signals pending, since a warning is meant for the ranks.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Set
from typing import TypeVar

from jobs.core import requeue_policy
from jobs.node.allocation import Allocation
from jobs.node.backoff import growing_delays
from jobs.node.torchrun import TERMINATION_SIGNALS

_POLL_S = 0.1
_LONGEST_POLL_S = 2.0
"""Each node of a job reads files of node 0 at these intervals: the first one, and the longest."""
_QUERY_INTERVAL_S = 5.0
"""Time between two queries of the scheduler, which each waiting node sends."""

T = TypeVar("T")


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


def poll_until(poll: Callable[[], T | None], within_s: float, allocation: Allocation | None) -> T | None:
    """Call `poll` until it returns a value, and return that; None after `within_s` seconds.

    Raises `JobEnded` when a pending signal ends the job. The caller has blocked `TERMINATION_SIGNALS`.
    """
    deadline = time.monotonic() + within_s
    query_at = 0.0
    delays = growing_delays(_POLL_S, _LONGEST_POLL_S)
    while (found := poll()) is None:
        now = time.monotonic()
        if now >= query_at and (pending := signal.sigpending().intersection(TERMINATION_SIGNALS)):
            _raise_if_ended(pending, allocation)
            query_at = time.monotonic() + _QUERY_INTERVAL_S
        if now > deadline:
            return None
        time.sleep(next(delays))
    return found


def _raise_if_ended(pending: Set[int], allocation: Allocation | None) -> None:
    """Raise `JobEnded` if these signals end the job, by the rules of `jobs.node.torchrun`."""
    ended, requeued, end_cause = pending != {signal.SIGTERM}, False, None
    if signal.SIGTERM in pending:
        facts = allocation.facts() if allocation else None
        end_cause = facts.end_cause if facts is not None else None
        requeued = allocation is not None and facts is not None and facts.restarts > allocation.restart
        ended = ended or allocation is None or requeued or (facts is not None and not facts.running)
    if ended:
        what = "requeued" if requeued else "ended"
        raise JobEnded(f"the job was {what} while this node waited for another one", requeued, end_cause)
