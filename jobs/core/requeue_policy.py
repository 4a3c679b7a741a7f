"""Requeue policy: `RULES` gives the action for each exit cause, `decide_requeue` applies the limits.

A batch system can start a job again under the same id. Where none does, only `RequeueRule.retryable` applies.
docs/requeue.md shows the table. Pure functions, standard library only.
"""

from __future__ import annotations

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

MAX_STARTS_WITHOUT_PROGRESS = 3
"""Consecutive starts without a newer checkpoint after which a job is not requeued."""

DEFAULT_MAX_REQUEUES = 100
"""Default of `job.max_requeues`."""

RuleAction = Literal["requeue", "retry", "end"]


@dataclass(frozen=True)
class RequeueRule:
    """Consequences of one exit cause."""

    action: RuleAction
    """`requeue`: always, within the limits. `retry`: if this start wrote a checkpoint, until
    `job.max_attempts` starts have failed. `end`: never."""
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
    "launch_failed": RequeueRule("retry", retryable=True),
    "out_of_memory": RequeueRule("end", retryable=False),  # the same shape will not fit later
    "refused": RequeueRule("end", retryable=False),  # the same config will be refused again
}
"""By exit cause (`disttrain.records.exit_causes.Cause`)."""

GRACEFUL_CAUSES = ("stopped", "deadline", "preempted")
"""Causes of starts that stopped on request: they do not count towards `job.max_attempts`."""


@dataclass(frozen=True)
class JobStart:
    """One start of a job, after its end."""

    cause: str
    checkpoint_before: int | None
    """Step of the newest checkpoint at the start; None if there was none."""
    checkpoint_after: int | None
    """Step of the newest checkpoint at the end; None if there was none."""

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


NO_REQUEUE = RequeueDecision(False)


def decide_requeue(starts: Sequence[JobStart], *, max_attempts: int, max_requeues: int) -> RequeueDecision:
    """The decision after the last of `starts`, which are all starts of one job, oldest first."""
    last = starts[-1]
    action = RULES[last.cause].action
    if action == "end":
        return NO_REQUEUE
    recent = starts[-MAX_STARTS_WITHOUT_PROGRESS:]
    if len(recent) == MAX_STARTS_WITHOUT_PROGRESS and not any(start.wrote_checkpoint for start in recent):
        return _limit_reached(f"{MAX_STARTS_WITHOUT_PROGRESS} starts in a row without a newer checkpoint")
    if len(starts) > max_requeues:
        return _limit_reached(f"job.max_requeues={max_requeues} reached")
    if action == "retry":
        # A failed launch writes no checkpoint. One from an earlier start shows that the run itself works.
        relaunch = last.cause == "launch_failed" and last.checkpoint_before is not None
        if not (last.wrote_checkpoint or relaunch):
            return RequeueDecision(False, "not requeued: this start wrote no checkpoint")
        failed = sum(start.cause not in GRACEFUL_CAUSES for start in starts)
        if failed >= max_attempts:
            return _limit_reached(f"job.max_attempts={max_attempts} reached")
    return RequeueDecision(True)


def _limit_reached(limit: str) -> RequeueDecision:
    return RequeueDecision(False, f"not requeued: {limit}", limit_reached=True)


def job_exit_code(cause: str, decision: RequeueDecision) -> int:
    """Exit code of node 0's task, for sites that act on exit codes."""
    if cause in ("finished", "stopped") or decision.requeue:
        return EXIT_DONE
    if not RULES[cause].retryable or decision.limit_reached:
        return EXIT_DO_NOT_REQUEUE
    return EXIT_LAUNCH_FAILED if cause == "launch_failed" else EXIT_FAILED
