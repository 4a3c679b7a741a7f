"""Correct the states that files give by the states of jobs at their schedulers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, MutableMapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from disttrain.records.json_files import read_json_or_none
from jobs.core import journal
from jobs.core.log_text import read_tail
from jobs.core.requeue_policy import RULES
from jobs.schedulers.base import Job, Scheduler, Submission, Unreachable, is_submitted_to
from jobs.schedulers.select import NAMES, scheduler_named
from jobs.status.batch_log import batch_log_of, error_line, last_line, step_refusal
from jobs.status.cancel_record import cancel_message
from jobs.status.outcome import silent_s, unrecorded_outcome, with_disk_problem
from jobs.status.run_state import RunState, read_state

ACCOUNTING_LAG_S = 300.0
"""A job that its scheduler does not find is lost only after its run was silent for this long, in seconds.
Accounting lags behind the queue, and a shared file system may lag as well."""

Warn = Callable[[str], None]


def refresh(
    states: Sequence[RunState],
    scheduler: Scheduler,
    *,
    receipts: bool = False,
    warn: Warn = lambda line: None,
) -> list[RunState]:
    """The states, corrected by the scheduler for jobs that have not ended by their files.

    One query serves all jobs; without such jobs there is none. An interrupted submission whose job is found
    becomes `queued`. With `receipts` its receipt is written, for which the caller holds the sweep's lock.
    `warn` gets one line when the scheduler does not answer; the states are then those of the files. The same
    holds for runs on another cluster.
    """
    elsewhere = _on_other_clusters(states, scheduler)
    if elsewhere:
        names = ", ".join(sorted({str(state.cluster_name) for state in elsewhere.values()}))
        warn(
            f"this is cluster {scheduler.cluster_name()}: "
            f"states of runs with jobs on cluster {names} are from the run directories"
        )
    found = _with_receipts([elsewhere.get(s.run.path, s) for s in states], scheduler, receipts, elsewhere)
    unfinished = [
        state
        for state in found
        if state.cluster == scheduler.name
        and state.run.path not in elsewhere
        and state.job_id
        and _needs_scheduler(state)
    ]
    if not unfinished:
        return found
    jobs = scheduler.poll([s.job_id for s in unfinished if s.job_id])
    failure = next((job.message for job in jobs.values() if job.status == "unknown" and job.message), None)
    if failure:
        warn(f"{scheduler.title} does not answer ({failure}): states are from the run directories")
    paths = {state.run.path for state in unfinished}
    return [
        _reconciled(s, jobs[s.job_id], scheduler) if s.job_id in jobs and s.run.path in paths else s
        for s in found
    ]


def refresh_all(
    states: Sequence[RunState],
    warn: Warn = lambda line: None,
    schedulers: MutableMapping[str, Scheduler] | None = None,
) -> list[RunState]:
    """The states, corrected by the scheduler of each run that needs one.

    `schedulers` keeps the schedulers for the next call, since they cache the name of the cluster and the jobs
    that have ended.

    For a job of this host, the identity of its process, in the run directory, is enough. So the scheduler of
    this host is queried for queued runs alone, whose process may have ended before it was recorded.
    """
    found = list(states)
    schedulers = {} if schedulers is None else schedulers
    for name in dict.fromkeys(state.cluster for state in states if _needs_scheduler(state)):
        if name not in NAMES:
            continue
        scheduler = schedulers.setdefault(name, scheduler_named(name))
        queried = [s for s in found if not scheduler.one_machine or (s.state == "queued" and not s.claimed)]
        corrected = {s.run.path: s for s in refresh(queried, scheduler, warn=warn)}
        found = [corrected.get(state.run.path, state) for state in found]
    return found


def with_canceller(state: RunState) -> RunState:
    """A cancelled run whose journal does not name the user, with the scheduler's account of the job's end."""
    entry = None if state.submission is None else journal.entry(state.run, state.submission)
    if state.cause != "cancelled" or not state.job_id or entry is None or entry.read("cancel"):
        return state
    if state.cluster not in NAMES or (scheduler := scheduler_named(state.cluster)).one_machine:
        return state
    if not is_submitted_to(scheduler, state.cluster, state.cluster_name):
        return state
    job = scheduler.poll([state.job_id])[state.job_id]
    return dataclasses.replace(state, message=job.message) if job.status == "ended" and job.message else state


def _needs_scheduler(state: RunState) -> bool:
    return state.state in ("submitting", "queued", "running", "lost")


def _on_other_clusters(states: Sequence[RunState], scheduler: Scheduler) -> dict[Path, RunState]:
    """States of the runs whose unfinished jobs are on other clusters, with that as their message."""
    return {
        state.run.path: dataclasses.replace(
            state, message=state.message or f"its job is on cluster {state.cluster_name}"
        )
        for state in states
        if state.cluster == scheduler.name
        and _needs_scheduler(state)
        and not is_submitted_to(scheduler, state.cluster, state.cluster_name)
    }


def _with_receipts(
    states: Sequence[RunState], scheduler: Scheduler, write: bool, elsewhere: Collection[Path]
) -> list[RunState]:
    """The states, with the job ids of interrupted submissions whose jobs the scheduler finds.

    Runs in the folders `elsewhere` are left as they are.
    """
    lost = {
        state.run.path: Submission.announced(state.run, state.submission)
        for state in states
        if state.state == "submitting"
        and state.cluster == scheduler.name
        and state.run.path not in elsewhere
        and state.submission is not None
    }
    if not lost:
        return list(states)
    try:
        found = dict(zip(lost, scheduler.find(list(lost.values())), strict=True))
    except Unreachable as error:
        message = f"whether it was submitted is not known: {error}"
        return [dataclasses.replace(s, message=message) if s.run.path in lost else s for s in states]
    jobs = {path: job_id for path, job_id in found.items() if job_id is not None}
    if not write:
        return [
            dataclasses.replace(s, state="queued", job_id=jobs[s.run.path]) if s.run.path in jobs else s
            for s in states
        ]
    for path, job_id in jobs.items():
        journal.write_receipt(lost[path].run, lost[path].number, job_id)
    return [read_state(state.run) if state.run.path in jobs else state for state in states]


def _reconciled(state: RunState, job: Job, scheduler: Scheduler) -> RunState:
    """A run that has not ended by its files, corrected by its job."""
    if job.status == "running":
        if state.state == "lost" or (state.silent and job.certain):
            return _revived(state, "running", message=job.message)
        if state.state == "queued" and job.certain and _is_new_start(state, job):
            return _revived(state, "starting", message=job.message or state.message, before_agents=True)
        return dataclasses.replace(state, message=job.message or state.message)
    if job.status == "pending":
        waits: dict[str, Any] = {"waits_for": job.waits_for, "start_expected": job.start_expected}
        if state.state == "queued":
            return dataclasses.replace(state, **waits)
        message = "its job was requeued" if state.claimed else state.message
        return _revived(state, "queued", message=message, **waits)
    if job.status in ("ended", "not_found") and state.active:
        return _state_after_job(state, job, scheduler)
    return state


def _revived(state: RunState, name: str, **fields: Any) -> RunState:
    fields |= {"state": name, "silent": False, "retryable": False, "cause": None, "eta_s": None}
    return dataclasses.replace(state, **fields)


def _is_new_start(state: RunState, job: Job) -> bool:
    """Whether a running job is in a start of which no agent has claimed the run.

    After a request to requeue, the old start runs for a moment.
    """
    if job.started is None or not state.claimed:
        return job.started is not None
    ended = (read_json_or_none(state.run.failed) or {}).get("ended")
    return ended is not None and job.started > datetime.fromisoformat(ended).timestamp()


def _state_after_job(state: RunState, job: Job, scheduler: Scheduler) -> RunState:
    now = read_state(state.run)  # it may have recorded its end meanwhile
    if not now.active or now.attempt != state.attempt:
        return now
    by = None if now.submission is None else cancel_message(journal.entry(now.run, now.submission))
    just_ended = silent_s(now.updated, now.run.submissions) < ACCOUNTING_LAG_S
    if job.status == "not_found" and just_ended and by is None:
        return state
    if not job.certain and not journal.is_own_submission(now.run, now.submission):
        # A scheduler may hide the jobs of other users.
        return dataclasses.replace(state, message=state.message or "another user's job, which is not listed")
    requeued = now.state == "queued" and now.claimed  # its last start had ended, for a requeue
    failed_again = requeued and job.status == "ended" and job.cause is None and job.message is not None
    log = batch_log_of(now, scheduler) if failed_again or not now.claimed else None
    if by is not None:
        cause, message = "cancelled", by
    else:
        cause, message = _cause_and_message(now, job, log, scheduler)
        if cause == "lost" and log is None:
            message = _with_refusal(message, now, scheduler)
        if cause == "lost" and now.attempt is not None and (end := unrecorded_outcome(now.run, now.attempt)):
            cause, message = end["cause"], end["message"]
        elif cause in ("lost", "launch_failed"):
            message = with_disk_problem(message, now.run.path)
        if requeued:
            message = f"{message} ({now.message})"
    fields: dict[str, Any] = {"cause": cause, "message": message, "silent": False, "eta_s": None}
    fields |= {
        "live_samples_per_s": None,
        "before_agents": log is not None,
        "state": "lost" if cause == "lost" and not requeued else "failed",
        "retryable": RULES[cause].retryable,
    }
    return dataclasses.replace(now, **fields)


def _cause_and_message(state: RunState, job: Job, log: Path | None, scheduler: Scheduler) -> tuple[str, str]:
    """How a job ended. `log` is the batch log of a job that ended before its agents started."""
    if job.status == "not_found" or job.message is None:
        if log is None:
            return "lost", job.message or "the scheduler does not list its job any more"
        cause, message = "launch_failed", "its job ended before its agents started"
    else:
        cause = job.cause or ("lost" if state.claimed and log is None else "launch_failed")
        message = job.message
    return cause, message if log is None else _with_log_line(message, cause, log, scheduler)


def _with_refusal(message: str, state: RunState, scheduler: Scheduler) -> str:
    """Message about a job that ended without a record, with the refusal of the step that would record it."""
    log = batch_log_of(state, scheduler)
    line = None if log is None else step_refusal(read_tail(log), scheduler.log_consequence)
    return f"{message}: {line}" if line else message


def _with_log_line(message: str, cause: str, log: Path, scheduler: Scheduler) -> str:
    """Message about a job that ended before its agents started, with a line of its batch log."""
    if cause == "launch_failed":
        line = error_line(read_tail(log), scheduler.log_consequence)
    else:
        message += " during its set-up"
        line = last_line(read_tail(log), scheduler.log_consequence)
    return f"{message}: {line}" if line else message
