"""Opening and closing one attempt of a run. Whoever claims an attempt closes it: the supervisor on a
local machine, node 0's agent on Slurm; failing that, the next start. Standard library only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.records.collect_provenance import code_hash
from disttrain.records.json_files import CorruptFile, read_json, read_json_or_none, write_json
from disttrain.records.run_directory import Attempt, RunDir, checkpoint_steps
from disttrain.records.run_json import read_run_json, read_run_json_or_none
from jobs.core import journal, requeue_policy
from jobs.core.exit_cause import ExitEvidence, ExitStatus, classify_exit, last_rank_line, root_cause_worker
from jobs.core.processes import current_process
from jobs.core.requeue_policy import JobStart, RequeueDecision

_LOG_TAIL_BYTES = 32 * 1024


class DoNotRestart(Exception):
    """A job that was started once more is not to train any more; the message says why, in one line."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def open_attempt(
    run: RunDir, submission: int, *, cluster: str, job_id: str | None, nodes: Sequence[str], restart: int = 0
) -> Attempt | None:
    """Claim a submission and begin its attempt; None when it was revoked or is somebody else's.

    `restart` is how often its job was started before. Such a start closes a predecessor that nobody closed,
    and raises `DoNotRestart` where the policy says that the run is over.
    """
    claims = journal.entry(run, submission).claims()
    if journal.is_revoked(claims) or journal.is_superseded(claims, restart):
        return None
    if claims:
        _check_policy(run, submission, claims)
    else:
        # Asked of an earlier submission. From the claim on it is asked of this one, and it counts.
        run.stop.unlink(missing_ok=True)
    me = current_process()
    code = code_hash()
    number = journal.claim(
        run, submission, process=me.as_dict(), job_id=job_id, code_hash=code, restart=restart
    )
    if number is None:
        return None
    intent = journal.entry(run, submission).read("intent") or {}
    attempt = run.attempt(number)
    write_json(  # before anything else: it is what tells an older copy of this job that it is over
        attempt.record,
        {
            "schema_version": 1,
            "attempt": number,
            "submission": submission,
            "cluster": cluster,
            "job_id": job_id,
            "nodes": list(nodes),
            "host": me.host,
            "pid": me.pid,
            "pid_started": me.started,
            "restart": restart,
            "checkpoint_before": newest_checkpoint(run),
            "checkpoint_after": None,
            "code_hash": code,
            "cpu_count": len(os.sched_getaffinity(0)),
            "submitted": intent.get("time"),
            "started": journal.utc_now(),
            "ended": None,
            "cause": None,
            "message": None,
            "exit_codes": {},
            "next": None,
        },
    )
    if claims:
        _close_lost(run, _attempt_of(run, claims[-1]), "requeue")
    run.failed.unlink(missing_ok=True)  # the word on the attempt before; attempt.json keeps it
    return attempt


def _check_policy(run: RunDir, submission: int, claims: Sequence[Mapping[str, Any]]) -> None:
    """Raises `DoNotRestart`, having settled the submission, when its last start was to be the last."""
    starts = _job_starts(run, claims)
    decision = _requeue_decision(run, starts)
    if decision.requeue:
        return
    last, cause = _attempt_of(run, claims[-1]), starts[-1].cause
    why = decision.reason or f"attempt {last.number} ended for good: {cause}"
    if not journal.revoke(run, submission, cause, why, starts=len(claims)):
        raise DoNotRestart("another start of this job was faster", requeue_policy.EXIT_DONE)
    if _close_lost(run, last, None, why):
        write_json(run.failed, _outcome_record(last, ExitStatus("lost", why), journal.utc_now()))
    raise DoNotRestart(
        why, requeue_policy.EXIT_DONE if cause == "finished" else requeue_policy.EXIT_DO_NOT_REQUEUE
    )


def _close_lost(run: RunDir, attempt: Attempt, then: str | None, why: str | None = None) -> bool:
    """Close an attempt that nobody closed; whether it was one."""
    record = read_json_or_none(attempt.record)
    if record is None or record.get("ended"):
        return False
    last_sign = journal.utc_time(_last_sign_of_life(attempt))
    message = why or "its agent vanished without a word"
    record |= {"ended": last_sign, "cause": "lost", "message": message, "next": then}
    write_json(attempt.record, record | {"checkpoint_after": newest_checkpoint(run)})
    return True


def _last_sign_of_life(attempt: Attempt) -> float:
    times = [attempt.path.stat().st_mtime]
    for path in attempt.path.iterdir():
        with contextlib.suppress(OSError):  # temporary, of a lost copy that writes yet
            times.append(path.stat().st_mtime)
    return max(times)


def _job_starts(run: RunDir, claims: Sequence[Mapping[str, Any]]) -> list[JobStart]:
    """The starts of a job; one that nobody closed was lost."""
    starts = []
    for claim in claims:
        record = read_json_or_none(_attempt_of(run, claim).record) or {}
        before, ended = record.get("checkpoint_before"), record.get("ended")
        after = record.get("checkpoint_after") if ended else newest_checkpoint(run)
        starts.append(JobStart(record.get("cause") or "lost", before, after))
    return starts


def _attempt_of(run: RunDir, claim: Mapping[str, Any]) -> Attempt:
    return run.attempt(int(claim["attempt"]))


def _requeue_decision(run: RunDir, starts: Sequence[JobStart]) -> RequeueDecision:
    limits = read_run_json(run)["config"]["job"]
    max_requeues = int(limits.get("max_requeues", requeue_policy.DEFAULT_MAX_REQUEUES))  # not in older plans
    return requeue_policy.decide_requeue(
        starts, max_attempts=int(limits["max_attempts"]), max_requeues=max_requeues
    )


def newest_checkpoint(run: RunDir) -> int | None:
    """Step of the newest committed checkpoint, wherever this run's are."""
    config = (read_run_json_or_none(run) or {}).get("config", {})
    elsewhere = config.get("checkpoint", {}).get("dir")
    folder = Path(elsewhere).resolve() / run.sweep / run.name if elsewhere else run.checkpoints
    return next(iter(checkpoint_steps(folder)), None)


def close_attempt(
    run: RunDir,
    attempt: Attempt,
    exit_codes: Mapping[int, int],
    *,
    stopped: str | None = None,
    stopped_message: str | None = None,
    can_requeue: bool = False,
) -> ExitStatus:
    """Find out how the attempt ended and write it down: `attempt.json`, then `DONE` or `FAILED`.

    `can_requeue`: its job is Slurm's, which can start it again; the verdict says whether that is to happen.
    """
    verdict = classify_exit(gather_evidence(run, attempt, exit_codes, stopped, stopped_message))
    ended, after = journal.utc_now(), newest_checkpoint(run)
    record = read_json_or_none(attempt.record) or {}
    record |= {"ended": ended, "cause": verdict.cause, "checkpoint_after": after}
    record["exit_codes"] = {str(node): code for node, code in sorted(exit_codes.items())}
    if can_requeue:
        claims = journal.entry(run, int(record["submission"])).claims()
        earlier = [claim for claim in claims if claim["by"] == "job" and claim["attempt"] < attempt.number]
        this = JobStart(verdict.cause, record.get("checkpoint_before"), after)
        verdict = verdict.with_decision(_requeue_decision(run, [*_job_starts(run, earlier), this]))
    outcome = _outcome_record(attempt, verdict, ended)
    write_json(attempt.record, record | {"message": verdict.message, "next": outcome["next"]})
    write_json(run.done if verdict.cause == "finished" else run.failed, outcome)
    return verdict


def record_requeue_failure(run: RunDir, attempt: Attempt) -> None:
    """Take back the word that the job of an attempt, just closed, would be started again."""
    for path in (attempt.record, run.failed):
        record = read_json(path)
        message = "; ".join(filter(None, [record["message"], "could not be requeued"]))
        write_json(path, record | {"message": message, "next": None})


def _outcome_record(attempt: Attempt, verdict: ExitStatus, ended: str) -> dict[str, Any]:
    """Content of `DONE` or `FAILED` (`records.Outcome`)."""
    return {
        "schema_version": 1,
        "cause": verdict.cause,
        "attempt": attempt.number,
        "message": verdict.message,
        "ended": ended,
        "retryable": verdict.retryable,
        "next": "requeue" if verdict.decision.requeue else None,
    }


def is_current(run: RunDir, attempt: Attempt) -> bool:
    """Whether nobody has gone on where this attempt was, or decided that nobody shall.

    Whoever was taken for dead and is not writes nothing but in its own attempt's folder.
    """
    if attempt.superseded_by() is not None:
        return False
    submission = (read_json_or_none(attempt.record) or {}).get("submission")
    claims = journal.entry(run, int(submission)).claims() if submission is not None else []
    return not claims or claims[-1].get("attempt") == attempt.number


def gather_evidence(
    run: RunDir,
    attempt: Attempt,
    exit_codes: Mapping[int, int],
    stopped: str | None,
    stopped_message: str | None,
) -> ExitEvidence:
    """Read what the attempt left behind."""
    metrics = read_json_or_none(run.metrics) or {}
    own = metrics if metrics.get("attempt") == attempt.number else {}
    left = own.get("stop_cause") if own.get("status") == "stopped" else None
    asked = read_json_or_none(attempt.stop) or {}
    tails = {node: _log_tail(attempt.node_log(node)) for node in exit_codes}
    # Not every node's exit code need be known here, but every node's log is.
    logs = {int(path.stem.partition("-")[2]): path for path in sorted(attempt.path.glob("node-*.log"))}
    killed = {node: worker for node, path in logs.items() if (worker := root_cause_worker(_log_tail(path)))}
    return ExitEvidence(
        completed=own.get("status") == "completed",
        exit_codes=exit_codes,
        rank_errors=_rank_errors(attempt),
        killed_workers=list(killed.values()),
        without_memory=[rank for node, (rank, _) in killed.items() if attempt.node_oom(node).exists()],
        stopped=stopped,
        stopped_message=stopped_message,
        asked=asked.get("cause"),
        asked_time=asked.get("time", 0.0),
        left=left,
        left_message=f"left at step {own.get('steps')} of {own.get('steps_total')}" if left else None,
        started_ranks=any(attempt.path.glob("rank-*.log")) or any(attempt.path.glob("steps-*.jsonl")),
        last_lines={node: last_rank_line(text) for node, text in tails.items()},
    )


def _rank_errors(attempt: Attempt) -> list[dict[str, Any]]:
    errors = []
    for path in sorted(attempt.path.glob("error-*.json")):
        try:
            error = read_json(path)
            errors.append({key: error[key] for key in ("rank", "time", "kind", "message", "cause")})
        except (OSError, CorruptFile, KeyError):
            continue  # a disk that fills up, at worst: the other witnesses remain
    return errors


def _log_tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
