"""The outcome and the progress of an attempt: the fields of `RunState` that differ between states.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Container, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from disttrain.errors import message_of
from disttrain.records.json_files import read_json, read_json_or_none
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_reported
from jobs.core import journal
from jobs.core.attempt import NOT_RECORDED
from jobs.core.log_text import read_tail
from jobs.core.processes import is_alive
from jobs.core.requeue_policy import RULES

_PROGRESS = (
    "step", "steps", "samples_per_s", "live_samples_per_s", "loss", "eta_s", "updated", "emulated",
    "gpu_utilization", "gpu_memory_used_bytes", "gpu_power_w", "cpu_percent", "rss_bytes",
)  # fmt: skip

SILENT_AFTER_S = 600.0
"""A run on another host is `silent` after this time without progress."""
_FULL_BELOW_BYTES = 64 * 1024
_UNRECORDED = re.compile(rf" agent: (\w+): (.*{NOT_RECORDED}.*)")
"""Line of an agent, or of the supervisor, about an end that `close_attempt` could not record."""
_UNRECORDED_NAME = re.compile(r"unrecorded\.(\w+)\.(\d{1,3})")
"""Name of its empty file, for which a full disk or an exceeded quota leaves room."""


def recorded_outcome(
    run: RunDir, attempt: int | None, names: Container[str] = ("DONE", "FAILED")
) -> dict[str, Any] | None:
    """The state by `DONE` or `FAILED` if its attempt is this one (any for None); else None.

    `names` are those in the run directory.
    """
    for name, state in (("DONE", "done"), ("FAILED", "failed")):
        if name not in names:
            continue
        try:
            outcome = read_json(f"{run.path}/{name}")
        except FileNotFoundError:
            continue
        if attempt not in (None, outcome["attempt"]):
            continue
        cause, message = outcome["cause"], outcome.get("message")
        fields = {"attempt": outcome["attempt"], "changed": outcome.get("ended"), "message": message}
        if outcome.get("next") == "requeue":
            message = f"requeued after {cause}: {message or ''}".rstrip(": ")
            return fields | {"state": "queued", "message": message}
        return fields | {"state": state, "cause": cause, "retryable": outcome["retryable"]}
    return None


def unclaimed_outcome(
    entry: journal.JournalEntry, revoked: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """The state of a submission that has started no attempt; None if it has started one meanwhile."""
    if revoked is not None:
        if revoked["cause"] == "cancelled":
            return failed_outcome("cancelled", revoked["message"]) | {"submission": None}
        return {"state": "planned", "message": revoked["message"], "submission": None}
    holder = entry.read("holder")  # the process that holds it in the queue of this machine
    if holder is not None and is_alive(holder["process"]) is False:
        if entry.path("claim").exists():
            return None
        return _lost(with_disk_problem("its job ended while it was queued", entry.run.path))
    return {"state": "queued" if (entry.parts or set()) & {"receipt", "holder"} else "submitting"}


def claimed_outcome(
    run: RunDir, names: Container[str], claim: Mapping[str, Any], updated: float | None
) -> dict[str, Any]:
    """The state of the newest attempt. `names` are those in the run directory, listed before."""
    attempt = claim["attempt"]
    if (ended := recorded_outcome(run, attempt, names)) is not None:
        return ended
    alive = is_alive(claim["process"])
    if (ended := recorded_outcome(run, attempt)) is not None:  # written since the listing
        return ended
    if alive is None:  # on another host; `lost` would allow a second start of a live run
        quiet_s = silent_s(updated, run.submissions)
        silent = quiet_s >= SILENT_AFTER_S
        message = _silence(quiet_s) if silent else warning(run, attempt)
        return {"state": "running", "silent": silent, "message": message}
    if alive:
        return {"state": "running", "message": warning(run, attempt)}
    # The attempt was not closed. Its metrics may still prove that training finished.
    metrics = read_json_or_none(run.metrics) or {}
    if metrics.get("status") == "completed" and metrics.get("attempt") == attempt:
        return {"state": "done", "cause": "finished"}
    message = f"its job on {claim['process']['host']} ended without recording why"
    return unrecorded_outcome(run, attempt) or _lost(with_disk_problem(message, run.path))


def unrecorded_outcome(run: RunDir, attempt: int) -> dict[str, Any] | None:
    """The state of an end that could not be recorded, by node 0's log or the name of a file; else None."""
    files = run.attempt(attempt)
    ends = _UNRECORDED.findall(read_tail(files.node_log(0)))
    names = " ".join(path.name for path in files.exits.glob("unrecorded.*"))
    if not ends and (found := _UNRECORDED_NAME.search(names)):
        number = int(found[2])
        ends = [(found[1], f"{NOT_RECORDED}{message_of(OSError(number, os.strerror(number)))}")]
    known = [(cause, message) for cause, message in ends if cause in RULES]
    return failed_outcome(*known[-1]) if known else None


def by_hand_outcome(updated: float | None, started: Path) -> dict[str, Any]:
    """The state of a start by hand without a recorded end. No file has its process: `lost` once silent."""
    quiet_s = silent_s(updated, started)
    if quiet_s >= SILENT_AFTER_S:
        return {"state": "lost", "cause": "lost", "message": _silence(quiet_s)}
    return {"state": "running"}


def failed_outcome(cause: str, message: str | None) -> dict[str, Any]:
    """Failed for a cause of `jobs.core.requeue_policy.RULES`, which states whether it is retryable."""
    return {"state": "failed", "retryable": RULES[cause].retryable, "cause": cause, "message": message}


def _lost(message: str) -> dict[str, Any]:
    return failed_outcome("lost", message) | {"state": "lost"}


def with_disk_problem(message: str, folder: Path) -> str:
    """The message, with the reason for which a job could not record its end there: a full disk, or a
    read-only file system."""
    with contextlib.suppress(OSError):
        disk = os.statvfs(folder)
        if disk.f_flag & os.ST_RDONLY:
            return f"{message}; the file system is read-only: {folder}"
        if disk.f_bavail * disk.f_frsize < _FULL_BELOW_BYTES and "disk is full" not in message:
            return f"{message}; the disk is full: {folder}"
    return message


def silent_s(updated: float | None, started: Path) -> float:
    """Seconds since the newest progress, or since the folder `started` was last changed."""
    return time.time() - max(updated or 0.0, os.stat(started).st_mtime)


def _silence(seconds: float) -> str:
    return f"silent for {seconds / 60:.0f} min"


def warning(run: RunDir, attempt: int) -> str | None:
    """The hang that an agent has seen and will end soon; else a checkpoint that cannot be restored."""
    files = run.attempt(attempt)
    for prefix, path in (("no progress: ", files.hang_warning), ("", files.checkpoint_warning)):
        found = read_json_or_none(path) or {}
        if "message" in found:
            return f"{prefix}{found['message']}"
    return None


def with_cancel_record(outcome: Mapping[str, Any], entry: journal.JournalEntry) -> dict[str, Any]:
    """Fields of a `RunState`, with the user who cancelled the submission where the journal records one."""
    may_be = outcome.get("cause") in ("cancelled", "killed", "lost")
    message = cancel_message(entry) if may_be else None
    return dict(outcome) if message is None else {**outcome, **failed_outcome("cancelled", message)}


def cancel_message(entry: journal.JournalEntry) -> str | None:
    """Message of a run that `disttrain cancel` ended; None without a record of it."""
    record = entry.read("cancel")
    if record is None:
        return None
    claim = entry.read("claim") or {}
    before = "" if claim.get("by") == "job" else "before it started, "
    return f"{before}by `disttrain cancel` of {record['user']} on {record['host']}"


def read_progress(run: RunDir, attempt: int) -> dict[str, float | None]:
    """The progress of an attempt, for display only: values that cannot be read are left out."""
    progress = read_json_or_none(f"{run.path}/progress.json") or {}
    if progress.get("attempt") != attempt:
        return {}
    progress["live_samples_per_s"] = progress.get("samples_per_s")
    progress["samples_per_s"] = progress.get("mean_samples_per_s")
    return {name: value for name in _PROGRESS if isinstance(value := progress.get(name), int | float)}


def reported_progress(run: RunDir, attempt: int) -> dict[str, float]:
    """The progress of a command without telemetry: its figures, those of its agent, and the time of its
    newest file."""
    live = (read_json_or_none(run.attempt(attempt).hardware(0)) or {}).get("live") or {}
    reported = {name: value for name, value in (live | read_reported(run)).items() if name in _PROGRESS}
    times = []
    for path in (run.metrics, run.attempt(attempt).rank_log(0)):
        with contextlib.suppress(OSError):
            times.append(os.stat(path).st_mtime)
    return {**reported, "updated": max(times)} if times else reported


def newest_time(*times: str | float | None) -> float | None:
    """The latest of these times (ISO 8601, or seconds since the epoch), in seconds since the epoch."""
    newest = 0.0
    for each in times:
        with contextlib.suppress(ValueError):  # for display only
            newest = max(
                newest, datetime.fromisoformat(each).timestamp() if isinstance(each, str) else each or 0
            )
    return newest or None
