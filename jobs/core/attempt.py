"""Open and close one attempt of a run.

The process that claims an attempt closes it: the supervisor of a job on one machine, else node 0's agent. If
that process died, the next start of the job closes the attempt as `lost`. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from disttrain.errors import message_of
from disttrain.records.collect_provenance import code_hash
from disttrain.records.json_files import read_json, read_json_or_none, write_json
from disttrain.records.run_directory import (
    CHECKPOINT_DIR,
    SAVED,
    SAVED_NAME,
    Attempt,
    RunDir,
    checkpoint_steps,
)
from disttrain.records.run_json import ranks_per_node
from jobs.core import journal, requeue_policy
from jobs.core.classify_exit import ExitStatus, classify_exit
from jobs.core.exit_evidence import read_evidence
from jobs.core.processes import current_process
from jobs.core.requeue_policy import JobStart, RequeueDecision

NOT_RECORDED = "not recorded: "
"""Precedes the error of the file system in the message of a status that `close_attempt` could not write."""


class DoNotRestart(Exception):
    """This start of a job must not train; the message gives the reason in one line."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def open_attempt(
    run: RunDir, submission: int, *, cluster: str, job_id: str | None, nodes: Sequence[str], restart: int = 0
) -> Attempt | None:
    """Claim a submission and create its attempt; None if it was revoked or another start has claimed it.

    `restart` is the number of earlier starts of the job. A restart closes the attempt before it if nobody
    has. The first start revokes a submission that needs a run which is not done. Raises `DoNotRestart` where
    the requeue policy ends the run, or the submission is of another job.
    """
    claims = journal.entry(run, submission).claims()
    if journal.is_revoked(claims) or journal.is_superseded(claims, restart):
        return None
    _check_job(run, submission, job_id)
    if claims:
        _check_policy(run, submission, claims)
    else:
        unmet = journal.unmet_need(run, submission)
        if unmet is not None and journal.revoke(run, submission, "launch_failed", unmet[1]):
            return None
        # This request to stop was for an earlier submission. One made after the claim is for this one.
        run.stop.unlink(missing_ok=True)
    process, code = current_process(), code_hash()
    number = journal.claim(
        run, submission, process=process.as_dict(), job_id=job_id, code_hash=code, restart=restart
    )
    if number is None:
        return None
    intent = journal.entry(run, submission).read("intent") or {}
    attempt = run.identified(create=True).attempt(number)
    record: dict[str, Any] = {
        "schema_version": 1,
        "attempt": number,
        "submission": submission,
        "cluster": cluster,
        "job_id": job_id,
        "nodes": list(nodes),
        "host": process.host,
        "pid": process.pid,
        "pid_started": process.started,
        "restart": restart,
        "checkpoint_before": newest_checkpoint(run),
        "checkpoint_after": None,
        "code_hash": code,
        "cpu_count": len(os.sched_getaffinity(0)),
        "submitted": intent.get("time"),
        "started": journal.utc_now(),
        **{"ended": None, "cause": None, "message": None, "exit_codes": {}, "next": None},
    }
    # Created before any node looks into it: an NFS client caches that a folder is missing.
    attempt.exits.mkdir(parents=True, exist_ok=True)
    write_json(attempt.record, record)  # first of all: an older copy of this job stops when this file exists
    if claims:
        _close_lost(run, _attempt_of(run, claims[-1]), "requeue")
    else:
        for earlier in run.attempts():
            if earlier.number < number:
                _close_lost(run, earlier, None)
    run.failed.unlink(missing_ok=True)  # about the attempt before, whose attempt.json keeps its contents
    return attempt


def _check_job(run: RunDir, submission: int, job_id: str | None) -> None:
    """Raise `DoNotRestart` if the submission is that of another job.

    The run directory of this job was moved away or deleted, and another run of the same name submitted.
    """
    receipt = journal.entry(run, submission).read("receipt")
    if receipt is not None and receipt["job_id"] != job_id:
        message = (
            f"job {job_id} is not the job of this run directory, which belongs to job {receipt['job_id']}"
        )
        raise DoNotRestart(message, requeue_policy.EXIT_DO_NOT_REQUEUE)


def _check_policy(run: RunDir, submission: int, claims: Sequence[Mapping[str, Any]]) -> None:
    """Revoke the submission and raise `DoNotRestart` if the policy does not requeue after its last start."""
    starts = _job_starts(run, claims)
    decision = _requeue_decision(run, starts)
    if decision.requeue:
        return
    last, cause = _attempt_of(run, claims[-1]), starts[-1].cause
    reason = decision.reason or f"not requeued: attempt {last.number} ended as {cause}"
    if not journal.revoke(run, submission, cause, reason, starts=len(claims)):
        raise DoNotRestart("another start of this job has claimed it", requeue_policy.EXIT_DONE)
    if _close_lost(run, last, None, reason):
        write_json(run.failed, _outcome_record(last, ExitStatus("lost", reason), journal.utc_now()))
    finished = cause == "finished"
    raise DoNotRestart(reason, requeue_policy.EXIT_DONE if finished else requeue_policy.EXIT_DO_NOT_REQUEUE)


def _close_lost(run: RunDir, attempt: Attempt, then: str | None, reason: str | None = None) -> bool:
    """Close an attempt as `lost` if its own job has not closed it; whether it had not."""
    record = read_json_or_none(attempt.record)
    if record is None or record.get("ended"):
        return False
    ended = journal.utc_time(_last_change(attempt))
    message = reason or "its agent ended without recording why"
    record |= {"ended": ended, "cause": "lost", "message": message, "next": then}
    write_json(attempt.record, record | {"checkpoint_after": newest_checkpoint(run)})
    return True


def _last_change(attempt: Attempt) -> float:
    """Time of the newest file of an attempt, in seconds since the epoch."""
    times = [attempt.path.stat().st_mtime]
    for path in attempt.path.iterdir():
        with contextlib.suppress(OSError):  # a temporary file of a copy of the job that still writes
            times.append(path.stat().st_mtime)
    return max(times)


def _job_starts(run: RunDir, claims: Sequence[Mapping[str, Any]]) -> list[JobStart]:
    return [job_start(run, _attempt_of(run, claim)) for claim in claims]


def job_start(run: RunDir, attempt: Attempt) -> JobStart:
    """Cause and checkpoints of an attempt that has ended; the cause is `lost` if nobody has closed it."""
    record = read_json_or_none(attempt.record) or {}
    before, ended = record.get("checkpoint_before"), record.get("ended")
    after = record.get("checkpoint_after") if ended else newest_checkpoint(run)
    return JobStart(record.get("cause") or "lost", before, after, bool(record.get("failed_nodes")))


def _attempt_of(run: RunDir, claim: Mapping[str, Any]) -> Attempt:
    return run.attempt(int(claim["attempt"]))


def _requeue_decision(run: RunDir, starts: Sequence[JobStart]) -> RequeueDecision:
    limits = read_json(run.run_json)["config"]["job"]
    max_requeues = int(limits.get("max_requeues", requeue_policy.DEFAULT_MAX_REQUEUES))  # not in old plans
    return requeue_policy.decide_requeue(
        starts, max_attempts=int(limits["max_attempts"]), max_requeues=max_requeues
    )


def newest_checkpoint(run: RunDir) -> int | None:
    """Step of the newest committed checkpoint of a run, in `checkpoint.dir` or the run directory.

    Of a command: time of the newest file in its folder of checkpoints, in seconds since the epoch.
    """
    config = (read_json_or_none(run.run_json) or {}).get("config", {})
    if "command" in config:
        return _newest_file(run.checkpoints)
    return next(iter(checkpoint_steps(checkpoint_folder(run, config))), None)


def resumed_checkpoint(run: RunDir, attempt: Attempt) -> Path | None:
    """The newest file or folder among the checkpoints of a command; the folder itself after saves elsewhere.

    None if there was no checkpoint when the attempt began, which all nodes read in the same record.
    """
    if read_json(attempt.record)["checkpoint_before"] is None:
        return None
    entries = [path for path in run.checkpoints.absolute().iterdir() if not path.name.startswith(".")]
    saves = [path for path in entries if path.name != SAVED_NAME]
    return max(saves, key=lambda path: (path.stat().st_mtime, path.name), default=run.checkpoints.absolute())


def checkpoint_folder(run: RunDir, config: Mapping[str, Any]) -> Path:
    """Folder of the run's checkpoints: below `checkpoint.dir`, or in the run directory."""
    elsewhere = (config.get("checkpoint") or {}).get("dir")
    return Path(elsewhere).resolve() / run.sweep / run.name if elsewhere else run.checkpoints


def _newest_file(folder: Path) -> int | None:
    """Time of the newest file below `folder`, in whole seconds since the epoch; None without one."""
    times = []
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # replaced meanwhile
                times.append(int(os.stat(os.path.join(place, name)).st_mtime))
    return max(times, default=None)


def close_attempt(
    run: RunDir,
    attempt: Attempt,
    exit_codes: Mapping[int, int],
    *,
    external_cause: str | None = None,
    external_message: str | None = None,
    lost_hosts: Sequence[str] | None = None,
    can_requeue: bool = False,
) -> ExitStatus:
    """Classify how the attempt ended; write `attempt.json`, then `DONE` or `FAILED`.

    `external_cause` and `external_message` are for an attempt that was ended from outside. `lost_hosts` are
    the failed nodes if the scheduler named them: a healthy node may not have recorded its exit yet.
    `can_requeue`: the scheduler can start the job again, and the returned status holds the requeue decision.
    """
    evidence = read_evidence(run, attempt, exit_codes, external_cause, external_message)
    status = classify_exit(evidence)
    ended, after = journal.utc_now(), newest_checkpoint(run)
    record = read_json_or_none(attempt.record) or {}
    if evidence.is_command and evidence.graceful_cause and after == record.get("checkpoint_before"):
        unsaved = f"it left no new file in {CHECKPOINT_DIR} and did not touch {SAVED}"
        status = replace(status, message=f"{status.message}; {unsaved}")
    record |= {"ended": ended, "cause": status.cause, "checkpoint_after": after}
    record["first_failed_rank"] = status.first_failed_rank
    record["exit_codes"] = {str(node): code for node, code in sorted(exit_codes.items())}
    record["failed_nodes"] = _failed_hosts(run, record, status) if lost_hosts is None else list(lost_hosts)
    if can_requeue:
        claims = journal.entry(run, int(record["submission"])).claims()
        earlier = [claim for claim in claims if claim["by"] == "job" and claim["attempt"] < attempt.number]
        before, excludes = record.get("checkpoint_before"), bool(record["failed_nodes"])
        this = JobStart(status.cause, before, after, excludes)
        status = status.with_decision(_requeue_decision(run, [*_job_starts(run, earlier), this]))
    outcome = _outcome_record(attempt, status, ended)
    try:
        write_json(attempt.record, record | {"message": status.message, "next": outcome["next"]})
        write_json(run.done if status.cause == "finished" else run.failed, outcome)
    except OSError as error:  # a full disk must not prevent the requeue; the next start closes the attempt
        with contextlib.suppress(OSError):
            (attempt.exits / f"unrecorded.{status.cause}.{error.errno}").touch()
        message = "; ".join(filter(None, [status.message, f"{NOT_RECORDED}{message_of(error)}"]))
        return replace(status, message=message)
    return status


def _failed_hosts(run: RunDir, record: Mapping[str, Any], status: ExitStatus) -> list[str]:
    """Hosts of the failed nodes and ranks of an attempt."""
    if not status.failed_nodes and not status.failed_ranks:
        return []
    config = (read_json_or_none(run.run_json) or {}).get("config", {})
    ranks = ranks_per_node(config) if "resources" in config else 1
    failed = {*status.failed_nodes, *(rank // ranks for rank in status.failed_ranks)}
    return [host for node, host in enumerate(record.get("nodes", ())) if node in failed]


def failed_hosts(run: RunDir, attempt: Attempt) -> tuple[list[str], list[str]]:
    """Hosts that failed in the job of a closed attempt: since its newest checkpoint, and at any time."""
    submission = (read_json_or_none(attempt.record) or {}).get("submission")
    claims = journal.entry(run, int(submission)).claims() if submission is not None else []
    paths = [_attempt_of(run, claim).record for claim in claims if claim["by"] == "job"]
    records = [read_json_or_none(path) or {} for path in paths]
    newest = max((each.get("checkpoint_after") or 0 for each in records), default=0)
    recent = [each for each in records if (each.get("checkpoint_after") or 0) >= newest]
    return _hosts_of(recent), _hosts_of(records)


def _hosts_of(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({host for record in records for host in record.get("failed_nodes") or ()})


def record_requeue_failure(run: RunDir, attempt: Attempt) -> None:
    """Record that the job of an attempt, closed with a requeue to follow, could not be requeued."""
    for path in (attempt.record, run.failed):
        if (record := read_json_or_none(path)) is None:
            continue  # the disk was full when the attempt was closed
        message = "; ".join(filter(None, [record.get("message"), "could not be requeued"]))
        with contextlib.suppress(OSError):
            write_json(path, record | {"message": message, "next": None})


def _outcome_record(attempt: Attempt, status: ExitStatus, ended: str) -> dict[str, Any]:
    """Content of `DONE` or `FAILED` (`records.Outcome`)."""
    return {
        "schema_version": 1,
        "cause": status.cause,
        "attempt": attempt.number,
        "message": status.message,
        "ended": ended,
        "retryable": status.retryable,
        "next": "requeue" if status.decision.requeue else None,
    }


def is_current(run: RunDir, attempt: Attempt) -> bool:
    """Whether no newer start of the job exists and the submission is not revoked since.

    A start that is not current writes only to the folder of its own attempt.
    """
    if attempt.superseded() is not None:
        return False
    submission = (read_json_or_none(attempt.record) or {}).get("submission")
    claims = journal.entry(run, int(submission)).claims() if submission is not None else []
    return not claims or claims[-1].get("attempt") == attempt.number
