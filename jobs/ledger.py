"""The submission journal of one run: what makes "submit it again" safe at any moment.

    submissions/0000.intent.json    about to submit, and with what          written by submit.py
    submissions/0000.receipt.json   the job id the cluster gave             written by submit.py
    submissions/0000.holder.json    the process waiting in a local queue    written by the supervisor
    submissions/0000.claim.json     this submission's one fate              created exclusively

The claim decides everything. Whoever creates it first wins: the job that starts an attempt with it, or
somebody who revokes the submission because no job can be found for it or the user cancelled. A job that
comes late finds itself revoked and leaves without a trace. A new submission begins only when the last
one is settled: revoked, or its attempt over. So a run is never started twice, wherever a submitter dies.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from disttrain.rundir import RunDir, create_exclusive, read_json, read_json_or_none, write_json


@dataclass(frozen=True)
class Entry:
    """One submission of a run and which of its files there are."""

    run: RunDir
    number: int
    parts: frozenset[str]

    def path(self, part: str) -> Path:
        return self.run.submissions / f"{self.number:04d}.{part}.json"

    def read(self, part: str) -> dict[str, Any] | None:
        """The content of a part, None if it is not there. Raises `CorruptFile`."""
        if part not in self.parts:
            return None
        try:
            return read_json(self.path(part))
        except FileNotFoundError:
            return None


def now() -> str:
    """UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def entries(run: RunDir) -> list[Entry]:
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
    return [Entry(run, number, frozenset(parts[number])) for number in sorted(parts)]


def entry(run: RunDir, number: int) -> Entry:
    """One submission, as if all its parts were there (`Entry.read` gives None for those that are not)."""
    return Entry(run, number, frozenset({"intent", "receipt", "holder", "claim"}))


def write_intent(run: RunDir, intent: Mapping[str, Any]) -> int:
    """Announce a submission before making it; its number.

    `intent` names the cluster and the keys of the run (`config_key`, `run_key`, `code_hash`).
    """
    number = next_submission(run)
    value = {**intent, "submission": number, "time": now()}
    if not create_exclusive(entry(run, number).path("intent"), value):
        raise RuntimeError(f"{run.path}: somebody else is submitting this run at this moment")
    return number


def next_submission(run: RunDir) -> int:
    """The number of the submission that would be announced next."""
    known = entries(run)
    return known[-1].number + 1 if known else 0


def write_receipt(run: RunDir, number: int, job_id: str) -> None:
    """Note the job that an announced submission became."""
    write_json(entry(run, number).path("receipt"), {"job_id": job_id, "time": now()})


def write_holder(run: RunDir, number: int, process: Mapping[str, Any]) -> None:
    """Note the process that waits to start this submission."""
    write_json(entry(run, number).path("holder"), {"process": dict(process), "time": now()})


def claim(
    run: RunDir, number: int, *, process: Mapping[str, Any], job_id: str | None, code_hash: str
) -> int | None:
    """Take a submission for the calling job: the attempt to start, or None when it is not ours to start.

    `code_hash` is of the code as it is now, which may have been edited since the run was planned.
    """
    attempt = next_attempt(run)
    value = {"by": "job", "attempt": attempt, "process": dict(process), "job_id": job_id}
    value |= {"code_hash": code_hash, "time": now()}
    return attempt if create_exclusive(entry(run, number).path("claim"), value) else None


def revoke(run: RunDir, number: int, cause: str, message: str) -> bool:
    """Settle a submission that has not started so that it never will; False when it has started.

    True also when it was revoked already.
    """
    path = entry(run, number).path("claim")
    value = {"by": "revoked", "cause": cause, "message": message, "time": now()}
    if create_exclusive(path, value):
        return True
    return (read_json_or_none(path) or {}).get("by") == "revoked"


def next_attempt(run: RunDir) -> int:
    """The number after the last attempt anybody claimed."""
    claims = (known.read("claim") for known in entries(run))
    claimed = [int(made["attempt"]) for made in claims if made and made.get("by") == "job"]
    started = [attempt.number for attempt in run.attempts()]
    return max([-1, *claimed, *started]) + 1
