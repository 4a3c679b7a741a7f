"""The submission journal of one run: what makes "submit it again" safe at any moment.

    submissions/0000.intent.json    about to submit, and with what          written by submit.py
    submissions/0000.receipt.json   the job id the cluster gave             written by submit.py
    submissions/0000.holder.json    the process waiting in a local queue    written by the supervisor
    submissions/0000.claim.json     its first start, or its end             created exclusively
    submissions/0000.claim-001.json the next one, once Slurm requeued its job, and so on

A claim decides everything. Whoever creates it first wins: the job that starts an attempt with it, or
somebody who revokes the submission because no job can be found for it or the user cancelled. A job that
comes late finds itself revoked and leaves without a trace; so does an older copy of a job that has been
started again since, which knows itself by its restart count. A new submission begins only when the last
one is settled: revoked, or its last attempt over. So a run is never started twice, wherever a submitter dies.

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
    """One submission of a run and which of its files there are."""

    run: RunDir
    number: int
    parts: frozenset[str] | None
    """None: not looked at, any of them may be there."""

    def path(self, part: str) -> Path:
        return self.run.submissions / f"{self.number:04d}.{part}.json"

    def read(self, part: str) -> dict[str, Any] | None:
        """The content of a part, None if it is not there. Raises `CorruptFile`."""
        if self.parts is not None and part not in self.parts:
            return None
        try:
            return read_json(self.path(part))
        except FileNotFoundError:
            return None

    def claims(self) -> list[dict[str, Any]]:
        """The claims there are, oldest first. Raises `CorruptFile`."""
        found: list[dict[str, Any]] = []
        while (claim := self.read(_claim_part(len(found)))) is not None:
            found.append(claim)
        return found


def _claim_part(number: int) -> str:
    return f"claim-{number:03d}" if number else "claim"


def utc_now() -> str:
    """UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def utc_time(seconds: float) -> str:
    """The same of a moment in seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def entries(run: RunDir) -> list[JournalEntry]:
    """The submissions there are, oldest first; one directory listing."""
    parts: dict[int, set[str]] = {}
    try:
        names = os.listdir(run.submissions)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for name in names:
        number, _, rest = name.partition(".")
        part, _, suffix = rest.partition(".")
        if number.isdigit() and suffix == "json":
            parts.setdefault(int(number), set()).add(part)
    return [JournalEntry(run, number, frozenset(parts[number])) for number in sorted(parts)]


def entry(run: RunDir, number: int) -> JournalEntry:
    """One submission, not looked at yet."""
    return JournalEntry(run, number, None)


def write_intent(run: RunDir, intent: Mapping[str, Any]) -> int:
    """Announce a submission before making it; its number.

    `intent` names the cluster and the keys of the run (`config_key`, `run_key`, `code_hash`).
    """
    number = next_submission(run)
    value = {**intent, "submission": number, "time": utc_now()}
    if not create_exclusive(entry(run, number).path("intent"), value):
        raise RuntimeError(f"{run.path}: somebody else is submitting this run at this moment")
    return number


def next_submission(run: RunDir) -> int:
    """The number of the submission that would be announced next."""
    known = entries(run)
    return known[-1].number + 1 if known else 0


def write_receipt(run: RunDir, number: int, job_id: str) -> None:
    """Note the job that an announced submission became."""
    write_json(entry(run, number).path("receipt"), {"job_id": job_id, "time": utc_now()})


def write_holder(run: RunDir, number: int, process: Mapping[str, Any]) -> None:
    """Note the process that waits to start this submission."""
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
    """Take a submission for the calling job: the attempt to start, or None when it is not ours to start.

    `code_hash` is of the code as it is now, which may have been edited since the run was planned.
    `restart` is how often this job has been started before.
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
    """Whether a submission with these claims starts nothing any more."""
    return bool(claims) and claims[-1]["by"] != "job"


def is_superseded(claims: Sequence[Mapping[str, Any]], restart: int) -> bool:
    """Whether this start of the job, or a later one, has claimed already."""
    return any(made["by"] == "job" and made.get("restart", 0) >= restart for made in claims)


def revoke(run: RunDir, number: int, cause: str, message: str, *, starts: int = 0) -> bool:
    """Settle a submission so that it starts nothing more; False when it has been started in the meantime.

    `starts` is how many starts of it the caller knows of: they are over. True also when it was revoked
    already.
    """
    path = entry(run, number).path(_claim_part(starts))
    value = {"by": "revoked", "cause": cause, "message": message, "time": utc_now()}
    if create_exclusive(path, value):
        return True
    return (read_json_or_none(path) or {}).get("by") == "revoked"


def next_attempt(run: RunDir) -> int:
    """The number after the last attempt anybody claimed."""
    claims = (made for known in entries(run) for made in known.claims())
    claimed = [int(made["attempt"]) for made in claims if made["by"] == "job"]
    started = [attempt.number for attempt in run.attempts()]
    return max([-1, *claimed, *started]) + 1
