"""Cancel the jobs of runs, pending or running, and wait for their end."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path

from disttrain.errors import is_access_denied
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.core.packing import Packing
from jobs.core.processes import host
from jobs.schedulers.interface import Scheduler, is_submitted_to
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_state

_POLL_S = 0.1
_QUERY_INTERVAL_S = 2.0
"""Seconds between two queries of the scheduler, for jobs that end without a record."""


def cancel_runs(
    states: Sequence[RunState], scheduler: Scheduler, *, dry_run: bool = False
) -> tuple[list[RunState], dict[Path, str]]:
    """Cancel the pending and running jobs of these runs, without waiting for their end.

    The journal records the user first, so that the run is known to be cancelled however its job ends. With
    `dry_run` nothing is cancelled, so that no refusal of the scheduler is known.

    Returns the runs whose job was cancelled, and the reason for each run whose job goes on, by its folder.
    Raises `ConfigError` when the scheduler does not answer.
    """
    here: list[RunState] = []
    failures: dict[Path, str] = {}
    for state in states:
        if is_submitted_to(scheduler, state.cluster, state.cluster_name):
            here += [state] if state.active else []
        elif state.active:
            failures[state.run.path] = f"its job is on cluster {state.cluster_name!r}: cancel it there"
    if dry_run:
        return here, failures
    recorded = {state.run.path: state.submission for state in here if _record_cancel(state)}
    ending = {state.run.path for state in here}
    beside = {state.run.path: _goes_on_beside(state, ending) for state in here}
    jobs = {state.job_id: state.job_comment for state in here if state.job_id and not beside[state.run.path]}
    refused = scheduler.cancel(jobs)
    refused |= {
        str(state.job_id): f"only the owner can cancel it alone: {other.name} is in the same job"
        for state in here
        if (other := beside[state.run.path]) and state.run.path not in recorded
    }
    cancelled = []
    for state in here:
        number = recorded.get(state.run.path)
        if state.job_id in refused:
            failures[state.run.path] = refused[state.job_id]
            if number is not None:
                journal.withdraw_cancel(state.run, number)
            continue
        cancelled.append(state)
        if number is not None and state.state != "running":
            waited = "while it waited to be started again" if state.claimed else "before it started"
            journal.revoke(state.run, number, "cancelled", f"cancelled {waited}", starts=state.starts)
    return cancelled, failures


def _goes_on_beside(state: RunState, ending: Container[Path]) -> RunDir | None:
    """A run of the same job that is not cancelled: the job goes on, and the agent of this run ends it."""
    packing = None if state.submission is None else Packing.of(state.run, state.submission)
    if packing is None:
        return None
    for run, number in packing.others(state.run).items():
        if run.path not in ending and (other := read_state(run)).active and other.submission == number:
            return run
    return None


def _record_cancel(state: RunState) -> bool:
    """Record the user in the journal of the run; False if this user may not write there.

    The scheduler then decides whether this user may end the job, and records that it was cancelled.
    """
    if state.submission is None:
        return False
    try:
        journal.write_cancel(state.run, state.submission, _user(), host())
    except OSError as error:
        return not is_access_denied(error)
    return True


def await_end(
    cancelled: Sequence[RunState],
    scheduler: Scheduler,
    within_s: float,
    notify: Callable[[int], None] = lambda active: None,
) -> list[RunState]:
    """The states of cancelled runs once none is active, or after `within_s` seconds.

    `notify` gets the number of active runs, once, if there are any after a second.
    """
    began = queried = time.monotonic()
    notified = False
    while True:
        states = [read_state(state.run) for state in cancelled]
        now = time.monotonic()
        if now - queried >= _QUERY_INTERVAL_S:
            states, queried = refresh(states, scheduler), now
        active = sum(state.active for state in states)
        if not active or now - began >= within_s:
            return states
        if not notified and now - began >= 1.0:
            notify(active)
            notified = True
        time.sleep(_POLL_S)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for this user
        return f"uid {os.getuid()}"
