"""What becomes of a run after each of its ends: one table, and how it is read. Pure functions.

A Slurm job can be started again by itself, under the same id (`scontrol requeue`). `RULES` says for which
causes it is, `decide_requeue` when that would lead nowhere. On a machine without Slurm nothing is requeued, and only
the last column counts. docs/requeue.md shows the table to users. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

EXIT_DONE = 0
"""The run is finished, or left for its requeue, or there was nothing to do."""
EXIT_FAILED = 1
EXIT_LAUNCH_FAILED = 69
"""torchrun could not be brought up (EX_UNAVAILABLE)."""
EXIT_NOT_REQUEUED = 75
"""It should have been requeued, and Slurm could not be made to (EX_TEMPFAIL)."""
EXIT_DO_NOT_REQUEUE = 93
"""Refused, revoked or given up: another start would end the same way."""

MAX_STARTS_WITHOUT_PROGRESS = 3
"""Starts in a row without a newer checkpoint that end a run."""

DEFAULT_MAX_REQUEUES = 100
"""What `job.max_requeues` is unless it is set."""

RuleAction = Literal["requeue", "retry", "give up"]


@dataclass(frozen=True)
class RequeueRule:
    """What follows from one cause."""

    next: RuleAction
    """`requeue`: as often as needed, while the run makes progress. `retry`: only if this start made progress,
    and until `job.max_attempts` have failed. `give up`: never by itself."""
    again: bool
    """Whether the same command, given again, may start the run again."""


RULES: dict[str, RequeueRule] = {
    "finished": RequeueRule("give up", again=False),
    "stopped": RequeueRule("give up", again=True),  # as the user wished
    "cancelled": RequeueRule("give up", again=True),
    "deadline": RequeueRule("requeue", again=True),
    "preempted": RequeueRule("requeue", again=True),
    "lost": RequeueRule(
        "requeue", again=True
    ),  # a node died: Slurm requeues the job, and the next start asks
    "timeout": RequeueRule("retry", again=True),  # it came to its time limit before it had saved
    "crashed": RequeueRule("retry", again=True),  # a network or a node may have done it, or a bug
    "killed": RequeueRule("retry", again=True),
    "launch_failed": RequeueRule("retry", again=True),
    "out_of_memory": RequeueRule("give up", again=False),  # the same shape will not fit again
    "refused": RequeueRule("give up", again=False),  # the same config will be refused again
}
"""By cause (`disttrain.records.causes.Cause`)."""

GRACEFUL_CAUSES = ("stopped", "deadline", "preempted")
"""Causes of starts that left as they were asked to: they do not count towards `job.max_attempts`."""


@dataclass(frozen=True)
class JobStart:
    """One start of a job that is over."""

    cause: str
    checkpoint_before: int | None
    """Step of the newest checkpoint when it began."""
    checkpoint_after: int | None
    """Step of the newest checkpoint when it ended."""

    @property
    def progressed(self) -> bool:
        return (self.checkpoint_after or 0) > (self.checkpoint_before or 0)


@dataclass(frozen=True)
class RequeueDecision:
    """Whether a job is to be started again, and if a limit stands in the way, which."""

    requeue: bool
    reason: str | None = None
    gave_up: bool = False
    """Whether it would have been, but for a limit."""


NO_REQUEUE = RequeueDecision(False)


def decide_requeue(starts: Sequence[JobStart], *, max_attempts: int, max_requeues: int) -> RequeueDecision:
    """What follows from the last of `starts`, which are all starts of one job, oldest first."""
    last = starts[-1]
    rule = RULES[last.cause].next
    if rule == "give up":
        return RequeueDecision(False)
    recent = starts[-MAX_STARTS_WITHOUT_PROGRESS:]
    if len(recent) == MAX_STARTS_WITHOUT_PROGRESS and not any(start.progressed for start in recent):
        return _limit_reached(f"{MAX_STARTS_WITHOUT_PROGRESS} starts in a row without a newer checkpoint")
    if len(starts) > max_requeues:
        return _limit_reached(f"job.max_requeues={max_requeues} reached")
    if rule == "retry":
        # A launch that fails makes none, but where the run has trained before it is not the run's fault.
        trained = last.progressed or (last.cause == "launch_failed" and last.checkpoint_before is not None)
        if not trained:
            return RequeueDecision(False, "not requeued: it made no checkpoint since its start")
        failed = sum(start.cause not in GRACEFUL_CAUSES for start in starts)
        if failed >= max_attempts:
            return _limit_reached(f"job.max_attempts={max_attempts} reached")
    return RequeueDecision(True)


def _limit_reached(why: str) -> RequeueDecision:
    return RequeueDecision(False, f"gave up: {why}", gave_up=True)


def job_exit_code(cause: str, decision: RequeueDecision) -> int:
    """With what a job's task ends, so that sites can act on it."""
    if cause in ("finished", "stopped") or decision.requeue:
        return EXIT_DONE
    if not RULES[cause].again or decision.gave_up:
        return EXIT_DO_NOT_REQUEUE
    return EXIT_LAUNCH_FAILED if cause == "launch_failed" else EXIT_FAILED
