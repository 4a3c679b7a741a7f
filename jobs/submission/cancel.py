"""Cancel the jobs of runs, pending or running."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobs.core import journal
from jobs.schedulers.base import Scheduler, is_submitted_to
from jobs.status.run_state import RunState


def cancel_runs(states: Sequence[RunState], scheduler: Scheduler) -> tuple[list[RunState], dict[Path, str]]:
    """Cancel the pending and running jobs of these runs, without waiting for their end.

    Returns the runs whose job was cancelled, and the reason for each run whose job goes on, by its folder.
    Raises `ConfigError` when the scheduler does not answer.
    """
    active = [state for state in states if state.active]
    here, failures = [], {}
    for state in active:
        if is_submitted_to(scheduler, state.cluster, state.cluster_name):
            here.append(state)
        else:
            failures[state.run.path] = f"its job is on cluster {state.cluster_name!r}: cancel it there"
    refused = scheduler.cancel({state.job_id: state.tag for state in here if state.job_id})
    failures |= {state.run.path: refused[state.job_id] for state in here if state.job_id in refused}
    cancelled = [state for state in here if state.run.path not in failures]
    for state in cancelled:
        if state.state != "running" and state.submission is not None:
            message = "cancelled while it waited to be started again"
            if not state.claimed:
                message = "cancelled before it started"
            journal.revoke(state.run, state.submission, "cancelled", message, starts=state.starts)
    return cancelled, failures
