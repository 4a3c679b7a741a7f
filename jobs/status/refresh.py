"""Correct the states that files give by the states of jobs at their schedulers.

A line of the batch log explains why a job ended before its agents started. This log holds the output of a job
outside its attempts: of the set-up in the batch script, of the scheduler's launcher, and of agents that could
not claim their attempt.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, MutableMapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from disttrain.records.json_files import read_json_or_none
from jobs.core import journal
from jobs.core.log_text import read_tail, shortened
from jobs.core.requeue_policy import RULES
from jobs.schedulers import names
from jobs.schedulers.interface import Job, Scheduler, Submission, Unreachable, is_submitted_to
from jobs.schedulers.select import scheduler_named
from jobs.status.outcome import cancel_message, silent_s, unrecorded_outcome, with_disk_problem
from jobs.status.run_state import RunState, read_state

ACCOUNTING_LAG_S = 300.0
"""A job that its scheduler does not find is lost only after its run was silent for this long, in seconds.
Accounting lags behind the queue, and a shared file system may lag as well."""

_MAX_LINES = 50
"""Number of last lines among which an error is searched. An older error was survived."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SCRIPT = re.compile(r"^/\S*: (?=line \d+: )")
"""bash's prefix of its own errors: the path of the node's copy of the script."""
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):|^  File \"")
_LMOD = re.compile(r"^Lmod has detected the following error:.*(?:\n(?!\s).+)*", re.MULTILINE)
"""An error of Lmod, which breaks its lines at 80 columns."""
_ERROR = re.compile(
    r"error|exception|fatal|not found|no such|cannot|can't|could not|couldn't|unable to|failed|failure"
    r"|denied|refused|invalid|illegal|unknown|unrecognized|unsupported|unbound|not permitted|no space|quota"
    r"|killed|segmentation|abort|bad interpreter",
    re.IGNORECASE,
)
_STEP_REFUSED = re.compile(r"^srun: error: Unable to create step")
"""The step after a failure may be refused, too. So another error has precedence."""
_NO_ERROR = re.compile(r"\b(warning|info|notice)\b|\b(0|no) (errors|failures)\b", re.IGNORECASE)

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
    found = {state.run.path: state for state in states}
    here: list[RunState] = []
    elsewhere: set[str] = set()
    for state in states:
        if state.cluster != scheduler.name or not _needs_scheduler(state):
            continue
        if is_submitted_to(scheduler, state.cluster, state.cluster_name):
            here.append(state)
        else:
            elsewhere.add(str(state.cluster_name))
            message = state.message or f"its job is on cluster {state.cluster_name}"
            found[state.run.path] = dataclasses.replace(state, message=message)
    if elsewhere:
        warn(
            f"this is cluster {scheduler.cluster_name()}: states of runs with jobs on cluster "
            f"{', '.join(sorted(elsewhere))} are from the run directories"
        )
    found |= _with_job_ids(here, scheduler, write=receipts)
    here = [found[state.run.path] for state in here]
    job_ids = {state.run.path: state.job_id for state in here if state.job_id and _needs_scheduler(state)}
    if job_ids:
        jobs = scheduler.poll(list(job_ids.values()))
        failures = [job.message for job in jobs.values() if job.status == "unknown" and job.message]
        if failures:
            warn(f"{scheduler.title} does not answer ({failures[0]}): states are from the run directories")
        found |= {
            path: _reconciled(found[path], jobs[job_id], scheduler)
            for path, job_id in job_ids.items()
            if job_id in jobs
        }
    return [found[state.run.path] for state in states]


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
        if name not in names():
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
    if state.cluster not in names() or (scheduler := scheduler_named(state.cluster)).one_machine:
        return state
    if not is_submitted_to(scheduler, state.cluster, state.cluster_name):
        return state
    job = scheduler.poll([state.job_id])[state.job_id]
    return dataclasses.replace(state, message=job.message) if job.status == "ended" and job.message else state


def _needs_scheduler(state: RunState) -> bool:
    return state.state in ("submitting", "queued", "running", "lost")


def _with_job_ids(states: Sequence[RunState], scheduler: Scheduler, *, write: bool) -> dict[Path, RunState]:
    """Interrupted submissions whose jobs the scheduler finds, with their job ids, by the run's folder."""
    sent = [
        (state, Submission.announced(state.run, state.submission))
        for state in states
        if state.state == "submitting" and state.submission is not None
    ]
    try:
        job_ids = scheduler.find([submission for _, submission in sent]) if sent else []
    except Unreachable as error:
        message = f"whether it was submitted is not known: {error}"
        return {state.run.path: dataclasses.replace(state, message=message) for state, _ in sent}
    found = {}
    for (state, submission), job_id in zip(sent, job_ids, strict=True):
        if job_id is not None and write:
            journal.write_receipt(submission.run, submission.number, job_id)
            found[state.run.path] = read_state(state.run)
        elif job_id is not None:
            found[state.run.path] = dataclasses.replace(state, state="queued", job_id=job_id)
    return found


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
    unmet = None if now.claimed or now.submission is None else journal.unmet_need(now.run, now.submission)
    if unmet is not None and by is None and not read_state(unmet[0]).active:
        return dataclasses.replace(now, state="planned", message=unmet[1])
    requeued = now.state == "queued" and now.claimed  # its last start had ended, for a requeue
    failed_again = requeued and job.status == "ended" and job.cause is None and job.message is not None
    log = batch_log_of(now, scheduler) if failed_again or not now.claimed else None
    cause, message = ("cancelled", by) if by is not None else _cause_and_message(now, job, log, scheduler)
    if requeued and by is None:
        message = f"{message} ({now.message})"
    return dataclasses.replace(
        now,
        state="lost" if cause == "lost" and not requeued else "failed",
        cause=cause,
        message=message,
        retryable=RULES[cause].retryable,
        before_agents=log is not None,
        silent=False,
        eta_s=None,
        live_samples_per_s=None,
    )


def _cause_and_message(state: RunState, job: Job, log: Path | None, scheduler: Scheduler) -> tuple[str, str]:
    """How a job ended. `log` is the batch log of a job that ended before its agents started.

    The message includes a line of the batch log that explains it, such as the refusal of the step that would
    have recorded the end.
    """
    if job.status != "not_found" and job.message is not None:
        message = job.message
        cause = job.cause or ("lost" if state.claimed and log is None else "launch_failed")
    elif log is None:
        cause, message = "lost", job.message or "the scheduler does not list its job any more"
    else:
        cause, message = "launch_failed", "its job ended before its agents started"
    attempt = state.attempt if cause == "lost" else None
    if attempt is not None and (end := unrecorded_outcome(state.run, attempt)):
        return end["cause"], end["message"]
    explain = error_line if cause == "launch_failed" else last_line
    if log is None:
        explain = step_refusal
        log = batch_log_of(state, scheduler) if cause == "lost" else None
    elif cause != "launch_failed":
        message += " during its set-up"
    if log is not None and (line := explain(read_tail(log), scheduler.log_consequence)):
        message += f": {line}"
    is_sudden = cause in ("lost", "launch_failed")
    return cause, with_disk_problem(message, state.run.path) if is_sudden else message


def batch_log_of(state: RunState, scheduler: Scheduler | None = None) -> Path | None:
    """The batch log of a run's newest submission; None if its job has written none."""
    if state.job_id is None or state.cluster not in names():
        return None
    scheduler = scheduler or scheduler_named(state.cluster)
    number = state.submission if state.submission is not None else journal.next_submission(state.run) - 1
    path = scheduler.batch_log(state.run, number, state.job_id)
    return path if path.exists() else None


def error_line(log: str, consequence: re.Pattern[str]) -> str | None:
    """The line of a batch log that gives the reason of a failure; None for an empty log.

    The last line that reads as an error, else the last line. A line that ends in a colon includes the next
    one. Lines that match `consequence` count only where the log has no other line.
    """
    lines = _cleaned(log)
    reasons = ([line for line in lines if not consequence.search(line)] or lines)[-_MAX_LINES:]
    if not reasons:
        return None
    errors = [
        index for index, line in enumerate(reasons) if _ERROR.search(line) and not _NO_ERROR.search(line)
    ]
    errors = [index for index in errors if not _STEP_REFUSED.search(reasons[index])] or errors
    index = errors[-1] if errors else len(reasons) - 1
    following = reasons[index + 1 : index + 2] if reasons[index].endswith(":") else []
    return shortened(" ".join([reasons[index], *following]))


def last_line(log: str, consequence: re.Pattern[str]) -> str | None:
    """The last line of a batch log that does not match `consequence`; None without one."""
    lines = [line for line in _cleaned(log) if not consequence.search(line)]
    return shortened(lines[-1]) if lines else None


def step_refusal(log: str, consequence: re.Pattern[str]) -> str | None:
    """The line by which the scheduler refused the last step of a job; None if the log ends otherwise."""
    line = last_line(log, consequence)
    return line if line and _STEP_REFUSED.search(line) else None


def _cleaned(log: str) -> list[str]:
    """The lines of a log without escape sequences, empty lines and the frames of tracebacks."""
    text = _LMOD.sub(lambda error: " ".join(error[0].split()), _ESCAPES.sub("", log))
    lines = (_SCRIPT.sub("", line).rstrip() for line in text.splitlines())
    return [line for line in lines if line and not _TRACEBACK.search(line)]
