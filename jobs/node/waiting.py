"""Waiting for word of another node, for no longer than the job itself is to run. Standard library only.

The signal that ends a job is blocked while a node waits; `jobs.node.torchrun` takes it up once torchrun runs. If the
word never comes, nobody does, and the node would stay until it is killed. So it is looked for here as well,
and left pending: it may be but a warning, which the ranks are to hear of.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Set
from typing import TypeVar

from jobs.core import requeue_policy
from jobs.node.allocation import Allocation
from jobs.node.torchrun import TERMINATION_SIGNALS

_POLL_S = 0.1
_ASK_S = 5.0
"""How long an answer of the scheduler holds: there may be many nodes, and each asks."""

T = TypeVar("T")


class JobEnded(Exception):
    """The job is being ended, and this node has nothing to write down; the message is one line."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def poll_until(look: Callable[[], T | None], within_s: float, allocation: Allocation | None) -> T | None:
    """What `look` finds, which is asked again and again; None if that is nothing for `within_s` seconds.

    Raises `JobEnded` once a signal is pending that ends this job of `allocation`. Signals have to be blocked.
    """
    deadline = time.monotonic() + within_s
    ask_at = 0.0
    while (found := look()) is None:
        now = time.monotonic()
        if now > deadline:
            return None
        if now >= ask_at and (pending := signal.sigpending().intersection(TERMINATION_SIGNALS)):
            _raise_if_ended(pending, allocation)
            ask_at = time.monotonic() + _ASK_S
        time.sleep(_POLL_S)
    return found


def _raise_if_ended(pending: Set[int], allocation: Allocation | None) -> None:
    """Raise `JobEnded` if these signals end the job, by the same rules as `jobs.node.torchrun` has."""
    ended, taken_back = pending != {signal.SIGTERM}, False
    if signal.SIGTERM in pending:
        facts = allocation.facts() if allocation else None
        taken_back = allocation is not None and facts is not None and facts.restarts > allocation.restart
        ended = ended or allocation is None or taken_back or (facts is not None and not facts.running)
    if ended:
        what = "taken back into the queue" if taken_back else "ended"
        code = requeue_policy.EXIT_DONE if taken_back else requeue_policy.EXIT_FAILED
        raise JobEnded(f"the job was {what} while this node waited for node 0", code)
