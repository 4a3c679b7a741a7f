"""The submission journal of one run: files that make a repeated submission safe at any moment.

    submissions/0000.intent.json    cluster and keys, before the submission   written by disttrain
    submissions/0000.receipt.json   the job id that the cluster returned      written by disttrain
    submissions/0000.holder.json    the process waiting in this host's queue  written by the supervisor
    submissions/0000.claim.json     its first start, or its revocation        created exclusively
    submissions/0000.claim-001.json the start after the first requeue, and so on
    submissions/0000.cancel.json    the user who cancelled it                 written by disttrain cancel

A claim decides who owns a submission: the first process to create the file wins. A job claims its submission
to start an attempt. A user's cancel, or a submitter that finds no job for an intent, revokes the submission.
A job with a revoked submission exits without writing. So does an older copy of a job that was started again:
its restart count is lower than that of the newest claim. A new submission begins only after the last one was
revoked or its last attempt ended. So a run never starts twice, wherever a submitter died.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from disttrain.records.json_files import create_exclusive, read_json, read_json_or_none, write_json
from disttrain.records.run_directory import RunDir


@dataclass(frozen=True)
class JournalEntry:
    """One submission of a run."""

    run: RunDir
    number: int
    parts: frozenset[str] | None
    """Names of its files, such as `intent`; None if the directory was not listed."""

    def path(self, part: str) -> Path:
        return self.run.submissions / f"{self.number:04d}.{part}.json"

    def read(self, part: str) -> dict[str, Any] | None:
        """The content of one file, None if it does not exist. Raises `CorruptFile`."""
        if self.parts is not None and part not in self.parts:
            return None
        try:
            return read_json(f"{self.run.path}/submissions/{self.number:04d}.{part}.json")
        except FileNotFoundError:
            return None

    def claims(self) -> list[dict[str, Any]]:
        """Its claims, oldest first. Raises `CorruptFile`."""
        found: list[dict[str, Any]] = []
        while (claim := self.read(_claim_part(len(found)))) is not None:
            found.append(claim)
        return found


def _claim_part(number: int) -> str:
    return f"claim-{number:03d}" if number else "claim"


def utc_now() -> str:
    """The current time: UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def utc_time(seconds: float) -> str:
    """A time in seconds since the epoch, in the format of `utc_now`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def entries(run: RunDir) -> list[JournalEntry]:
    """The submissions of a run, oldest first, from one directory listing."""
    parts: dict[int, set[str]] = {}
    try:
        names = os.listdir(f"{run.path}/submissions")
    except (FileNotFoundError, NotADirectoryError):
        return []
    for name in names:
        number, _, rest = name.partition(".")
        part, _, suffix = rest.partition(".")
        if number.isdigit() and suffix == "json":
            parts.setdefault(int(number), set()).add(part)
    return [JournalEntry(run, number, frozenset(parts[number])) for number in sorted(parts)]


def entry(run: RunDir, number: int) -> JournalEntry:
    """One submission by its number, without a directory listing."""
    return JournalEntry(run, number, None)


def write_intent(run: RunDir, intent: Mapping[str, Any]) -> int:
    """Record a submission before it is made; its number.

    `intent` holds the cluster and the keys of the run (`config_key`, `run_key`, `code_hash`). Raises
    `RuntimeError` if another process records the same submission.
    """
    number = next_submission(run)
    value = {**intent, "submission": number, "time": utc_now()}
    if not create_exclusive(entry(run, number).path("intent"), value):
        raise RuntimeError(f"{run.path}: another process is submitting this run")
    return number


def is_own_submission(run: RunDir, number: int | None) -> bool:
    """Whether this user made the submission, by the owner of its intent. True if it has no intent."""
    if number is None:
        return True
    try:
        return os.stat(entry(run, number).path("intent")).st_uid == os.getuid()
    except FileNotFoundError:
        return True


def next_submission(run: RunDir) -> int:
    """The number of the next submission."""
    existing = entries(run)
    return existing[-1].number + 1 if existing else 0


def write_receipt(run: RunDir, number: int, job_id: str) -> None:
    """Record the job id of a submission."""
    write_json(entry(run, number).path("receipt"), {"job_id": job_id, "time": utc_now()})


def write_cancel(run: RunDir, number: int, user: str, host: str) -> None:
    """Record that a user cancels a submission, before its job is ended."""
    write_json(entry(run, number).path("cancel"), {"user": user, "host": host, "time": utc_now()})


def is_cancelled(run: RunDir, number: int) -> bool:
    """Whether a user cancels a submission. Lists the folder: a client of NFS caches that a file is absent."""
    return any("cancel" in (each.parts or ()) for each in entries(run) if each.number == number)


def unmet_need(run: RunDir, number: int) -> tuple[RunDir, str] | None:
    """The first run that must be done before this submission starts, and is not, with a message in one line;
    None if all are."""
    for name in (entry(run, number).read("intent") or {}).get("needs", ()):
        needed = RunDir(run.path.parent.parent / name)
        try:
            names = os.listdir(needed.path)  # a client of NFS caches that a file is absent
        except FileNotFoundError:
            names = []
        if needed.done.name not in names:
            cause = (read_json_or_none(needed.failed) or {}).get("cause")
            return needed, f"it needs {name}, which is not done" + (f" ({cause})" if cause else "")
    return None


def withdraw_cancel(run: RunDir, number: int) -> None:
    """Remove the record of `write_cancel`: the scheduler refused to end the job."""
    entry(run, number).path("cancel").unlink(missing_ok=True)


def write_holder(run: RunDir, number: int, process: Mapping[str, Any]) -> None:
    """Record the process that waits in this host's queue to start this submission."""
    write_json(entry(run, number).path("holder"), {"process": dict(process), "time": utc_now()})


def claim(
    run: RunDir,
    number: int,
    *,
    process: Mapping[str, Any],
    job_id: str | None,
    code_hash: str,
    restart: int = 0,
) -> int | None:
    """Claim a submission for the calling job: the number of the attempt to start, or None.

    None: the submission is revoked, or this start or a later one has claimed it. `code_hash` is the hash of
    the running code, which may differ from the planned one. `restart` is the number of earlier starts.
    """
    while True:
        claims = entry(run, number).claims()
        if is_revoked(claims) or is_superseded(claims, restart):
            return None
        attempt = next_attempt(run)
        value = {"by": "job", "attempt": attempt, "process": dict(process), "job_id": job_id}
        value |= {"restart": restart, "code_hash": code_hash, "time": utc_now()}
        if create_exclusive(entry(run, number).path(_claim_part(len(claims))), value):
            return attempt


def is_revoked(claims: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a submission with these claims was revoked: no job of it starts an attempt any more."""
    return bool(claims) and claims[-1]["by"] != "job"


def is_superseded(claims: Sequence[Mapping[str, Any]], restart: int) -> bool:
    """Whether the start number `restart` of the job, or a later one, is among the claims."""
    return any(each["by"] == "job" and each.get("restart", 0) >= restart for each in claims)


def revoke(run: RunDir, number: int, cause: str, message: str, *, starts: int = 0) -> bool:
    """Revoke a submission, so that no job of it starts an attempt; False if a job has claimed it meanwhile.

    `starts` is the number of claims that the caller has read. True also if it was revoked before.
    """
    path = entry(run, number).path(_claim_part(starts))
    value = {"by": "revoked", "cause": cause, "message": message, "time": utc_now()}
    if create_exclusive(path, value):
        return True
    return (read_json_or_none(path) or {}).get("by") == "revoked"


def next_attempt(run: RunDir) -> int:
    """The number after the highest attempt claimed or started."""
    claims = (each for existing in entries(run) for each in existing.claims())
    claimed = [int(each["attempt"]) for each in claims if each["by"] == "job"]
    started = [attempt.number for attempt in run.attempts()]
    return max([-1, *claimed, *started]) + 1
