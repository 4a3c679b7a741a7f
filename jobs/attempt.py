"""Opening and closing one attempt of a run. Whoever claims an attempt closes it: the supervisor on a
local machine, node 0's agent on Slurm. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.provenance import code_hash
from disttrain.rundir import Attempt, CorruptFile, RunDir, read_json, read_json_or_none, write_json
from jobs import ledger
from jobs.outcome import Evidence, Verdict, judge, killed_worker, last_words
from jobs.processes import this_process

_LOG_TAIL_BYTES = 32 * 1024


def open_attempt(
    run: RunDir, submission: int, *, cluster: str, job_id: str | None, nodes: Sequence[str]
) -> Attempt | None:
    """Claim a submission and begin its attempt; None when it was revoked or is somebody else's."""
    me = this_process()
    code = code_hash()
    number = ledger.claim(run, submission, process=me.as_dict(), job_id=job_id, code_hash=code)
    if number is None:
        return None
    intent = ledger.entry(run, submission).read("intent") or {}
    run.failed.unlink(missing_ok=True)  # the word on the attempt before; attempt.json keeps it
    run.stop.unlink(missing_ok=True)  # asked of the attempt before
    attempt = run.attempt(number)
    write_json(
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
            "code_hash": code,
            "cpu_count": len(os.sched_getaffinity(0)),
            "submitted": intent.get("time"),
            "started": ledger.now(),
            "ended": None,
            "cause": None,
            "message": None,
            "exit_codes": {},
        },
    )
    return attempt


def close_attempt(
    run: RunDir,
    attempt: Attempt,
    exit_codes: Mapping[int, int],
    *,
    stopped: str | None = None,
    stopped_message: str | None = None,
) -> Verdict:
    """Find out how the attempt ended and write it down: `attempt.json`, then `DONE` or `FAILED`."""
    evidence = gather(run, attempt, exit_codes, stopped, stopped_message)
    verdict = judge(evidence)
    ended = ledger.now()
    record = read_json_or_none(attempt.record) or {}
    record |= {"ended": ended, "cause": verdict.cause, "message": verdict.message}
    record["exit_codes"] = {str(node): code for node, code in sorted(exit_codes.items())}
    write_json(attempt.record, record)
    outcome = {
        "schema_version": 1,
        "cause": verdict.cause,
        "attempt": attempt.number,
        "message": verdict.message,
        "ended": ended,
        "retryable": verdict.retryable,
    }
    write_json(run.done if verdict.cause == "finished" else run.failed, outcome)
    return verdict


def gather(
    run: RunDir,
    attempt: Attempt,
    exit_codes: Mapping[int, int],
    stopped: str | None,
    stopped_message: str | None,
) -> Evidence:
    """Read what the attempt left behind."""
    metrics = read_json_or_none(run.metrics) or {}
    own = metrics if metrics.get("attempt") == attempt.number else {}
    left = own.get("stop_cause") if own.get("status") == "stopped" else None
    tails = {node: _tail(attempt.node_log(node)) for node in exit_codes}
    # On Slurm only node 0's exit code is known here, but every node's log is.
    killed = [killed_worker(_tail(path)) for path in sorted(attempt.path.glob("node-*.log"))]
    return Evidence(
        completed=own.get("status") == "completed",
        exit_codes=exit_codes,
        rank_errors=_rank_errors(attempt),
        killed_workers=[worker for worker in killed if worker is not None],
        stopped=stopped,
        stopped_message=stopped_message,
        left=left,
        left_message=f"left at step {own.get('steps')} of {own.get('steps_total')}" if left else None,
        started_ranks=any(attempt.path.glob("rank-*.log")) or any(attempt.path.glob("steps-*.jsonl")),
        last_words={node: last_words(text) for node, text in tails.items()},
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


def _tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
