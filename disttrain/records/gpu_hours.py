"""What a run used, once it is over."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Record


class UsedStart(Record):
    """One start of a run's job, and the wait before it."""

    job_id: str | None
    submitted: str | None
    """UTC, ISO 8601: submission, or requeue: the end of the start before."""
    started: str
    ended: str
    """Of a start that nobody ended: the last sign of life."""
    elapsed_s: float
    devices: int
    """GPUs it held, or where it had none, ranks."""


class Usage(Record):
    """`usage.json`: what a run used according to Slurm's accounting, once it is over. Without this file the
    attempts' own times tell."""

    source: Literal["sacct", "timestamps"]
    unit: Literal["GPU-hours", "CPU rank-hours"]
    hours: float
    """Of all starts together."""
    queue_wait_s: float | None
    """Before all starts together; null where no submission is known."""
    attempts: int
    """Attempts that had been made when this was counted."""
    starts: list[UsedStart]
