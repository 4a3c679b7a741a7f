"""The record that a user cancelled a run by `submit.py cancel`. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.core import journal
from jobs.core.requeue_policy import RULES


def with_cancel_record(outcome: Mapping[str, Any], entry: journal.JournalEntry) -> dict[str, Any]:
    """Fields of a `RunState`, with the user who cancelled the submission where the journal records one."""
    may_be = outcome.get("cause") in ("cancelled", "killed", "lost")
    message = cancel_message(entry) if may_be else None
    if message is None:
        return dict(outcome)
    fields = {"state": "failed", "cause": "cancelled", "message": message}
    return {**outcome, **fields, "retryable": RULES["cancelled"].retryable}


def cancel_message(entry: journal.JournalEntry) -> str | None:
    """Message of a run that `submit.py cancel` ended; None without a record of it."""
    record = entry.read("cancel")
    if record is None:
        return None
    claim = entry.read("claim") or {}
    before = "" if claim.get("by") == "job" else "before it started, "
    return f"{before}by `submit.py cancel` of {record['user']} on {record['host']}"
