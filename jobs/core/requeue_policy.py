"""Requeue policy: `RULES` gives the action for each exit cause, `decide_requeue` applies the limits.

A batch system can start a job again under the same id. Elsewhere only `RequeueRule.retryable` applies.
docs/requeue.md shows the table. Pure functions, standard library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

EXIT_DONE = 0
"""The run finished, stopped on request or will be requeued; or the agent had nothing to do."""
EXIT_FAILED = 1
EXIT_LAUNCH_FAILED = 69
"""torchrun did not start (EX_UNAVAILABLE)."""
EXIT_NOT_REQUEUED = 75
"""The policy asked for a requeue, and the scheduler refused it (EX_TEMPFAIL)."""
EXIT_DO_NOT_REQUEUE = 93
"""The run was refused, revoked or reached a limit: another start would end the same way."""

DEFAULT_MAX_REQUEUES = 100
"""Default of `job.max_requeues`."""

PREEMPTION_DELAY_S = 300.0
"""Earliest start after the second pre-emption in a row without progress, in seconds. It doubles with each
further one."""
MAX_PREEMPTION_DELAY_S = 3600.0

RuleAction = Literal["requeue", "retry", "exclude", "end"]


@dataclass(frozen=True)
class RequeueRule:
    """Consequences of one exit cause."""

    action: RuleAction
    """`requeue`: always, within the limits. `retry`: within the limits, once the run has a checkpoint.
    `exclude`: once without progress, if nodes are known that the next start avoids. `end`: never."""
    retryable: bool
    """Whether the same `sweep` or `run` command starts the run again."""


RULES: dict[str, RequeueRule] = {
    "finished": RequeueRule("end", retryable=False),
    "stopped": RequeueRule("end", retryable=True),  # the user asked for it
    "cancelled": RequeueRule("end", retryable=True),
    "deadline": RequeueRule("requeue", retryable=True),
    "preempted": RequeueRule("requeue", retryable=True),
    "lost": RequeueRule("requeue", retryable=True),  # the scheduler requeues the job of a node that died
    "timeout": RequeueRule("retry", retryable=True),  # the time limit came before a checkpoint was saved
    "crashed": RequeueRule("retry", retryable=True),  # a network error, a node failure or a bug
    "killed": RequeueRule("retry", retryable=True),
    "hung": RequeueRule("retry", retryable=True),  # a stopped process, a broken network or a deadlock
    "launch_failed": RequeueRule("retry", retryable=True),
    "preflight_failed": RequeueRule("exclude", retryable=True),  # other nodes may pass
    "out_of_memory": RequeueRule("end", retryable=False),  # the same shape will not fit later
    "non_finite": RequeueRule("end", retryable=False),  # the same steps would give the same numbers
    "refused": RequeueRule("end", retryable=False),  # the same config will be refused again
}
"""By exit cause (`disttrain.records.exit_causes.Cause`)."""

_NOT_COUNTED = ("preempted", "stopped", "cancelled")
"""Causes that do not count towards `job.max_attempts`: the scheduler or the user ended the start."""


@dataclass(frozen=True)
class JobStart:
    """One start of a job, after its end."""

    cause: str
    checkpoint_before: int | None
    """Step of the newest checkpoint at the start; None if there was none."""
    checkpoint_after: int | None
    """Step of the newest checkpoint at the end; None if there was none."""

    excludes: bool = False
    """Whether it named nodes at fault, which the next start avoids."""

    @property
    def wrote_checkpoint(self) -> bool:
        return (self.checkpoint_after or 0) > (self.checkpoint_before or 0)


@dataclass(frozen=True)
class RequeueDecision:
    """Whether to start a job again, and the reason against it."""

    requeue: bool
    reason: str | None = None
    limit_reached: bool = False
    """Whether only a limit prevents the requeue."""
    delay_s: float = 0.0
    """Earliest start after the requeue, in seconds from now; 0: the scheduler's own delay."""


NO_REQUEUE = RequeueDecision(False)


def decide_requeue(starts: Sequence[JobStart], *, max_attempts: int, max_requeues: int) -> RequeueDecision:
    """The decision after the last of `starts`, which are all starts of one job, oldest first."""
    last = starts[-1]
    action = RULES[last.cause].action
    if action == "end":
        return NO_REQUEUE
    if len(starts) > max_requeues:
        return _limit_reached(f"job.max_requeues={max_requeues} reached")
    if action == "retry" and last.checkpoint_after is None:
        return RequeueDecision(False, "not requeued: the run has no checkpoint yet")
    if action == "exclude":
        if not last.excludes:
            return RequeueDecision(False, "not requeued: no node is at fault")
        if sum(start.cause == last.cause for start in _since_progress(starts)) > 1:
            return RequeueDecision(False, "not requeued: the job was requeued for this before")
    if starts_without_progress(starts) >= max_attempts:
        return _limit_reached(f"job.max_attempts={max_attempts} in a row without a newer checkpoint")
    return RequeueDecision(True, delay_s=_preemption_delay_s(starts))


def starts_without_progress(starts: Sequence[JobStart]) -> int:
    """Number of failed starts after the last one that wrote a checkpoint.

    A pre-emption, a stop request and a cancel neither count nor end the sequence.
    """
    return sum(start.cause not in _NOT_COUNTED for start in _since_progress(starts))


def _since_progress(starts: Sequence[JobStart]) -> list[JobStart]:
    """The starts after the last one that wrote a checkpoint, newest first."""
    return list(itertools.takewhile(lambda start: not start.wrote_checkpoint, reversed(starts)))


def _preemption_delay_s(starts: Sequence[JobStart]) -> float:
    """Back-off while pre-emptions end one start after the other before it writes a checkpoint, in seconds."""
    futile = itertools.takewhile(
        lambda start: start.cause == "preempted" and not start.wrote_checkpoint, reversed(starts)
    )
    count = sum(1 for _ in futile)
    return min(MAX_PREEMPTION_DELAY_S, PREEMPTION_DELAY_S * 2.0 ** (count - 2)) if count >= 2 else 0.0


def _limit_reached(limit: str) -> RequeueDecision:
    return RequeueDecision(False, f"not requeued: {limit}", limit_reached=True)


def job_exit_code(cause: str, decision: RequeueDecision) -> int:
    """Exit code of node 0's task, for sites that act on exit codes."""
    if cause in ("finished", "stopped") or decision.requeue:
        return EXIT_DONE
    if not RULES[cause].retryable or decision.limit_reached:
        return EXIT_DO_NOT_REQUEUE
    return EXIT_LAUNCH_FAILED if cause in ("launch_failed", "preflight_failed") else EXIT_FAILED
