"""Cancel the jobs of runs, pending or running."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.core import journal
from jobs.schedulers.base import Scheduler
from jobs.status.run_state import RunState


def cancel_runs(states: Sequence[RunState], scheduler: Scheduler) -> list[RunState]:
    """Cancel the pending and running jobs of these runs, without waiting; return the runs that had a job."""
    hit = [state for state in states if state.active]
    for state in hit:
        if state.state != "running" and state.submission is not None:
            message = "cancelled while it waited to be started again"
            if not state.claimed:
                message = "cancelled before it started"
            journal.revoke(state.run, state.submission, "cancelled", message, starts=state.starts)
    scheduler.cancel([state.job_id for state in hit if state.job_id])
    return hit
