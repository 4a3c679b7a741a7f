"""GPU-hours and queue time of a run: the `usage.json` record, and its computation from attempt records.

Every attempt counts. Slurm's accounting, where it was recorded, replaces the attempts' own timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError

from disttrain.records.base import Record
from disttrain.records.json_files import CorruptFile, read_json, read_json_or_none
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json_or_none

Unit = Literal["GPU-hours", "CPU rank-hours"]


class StartGpuHours(Record):
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


class RunGpuHours(Record):
    """`usage.json`: what a run used according to Slurm's accounting, once it is over. Without this file the
    attempts' own times tell."""

    source: Literal["sacct", "timestamps"]
    unit: Unit
    hours: float
    """Of all starts together."""
    queue_wait_s: float | None
    """Before all starts together; null where no submission is known."""
    attempts: int
    """Attempts that had been made when this was counted."""
    starts: list[StartGpuHours]


def read(run: RunDir) -> RunGpuHours | None:
    """What the run used: by Slurm's accounting where that was written down, else by its attempts' own times.

    None where it made no attempt, or its `run.json` cannot be read.
    """
    attempts = attempt_records(run)
    noted = _noted(run)
    if noted is not None and noted.attempts == len(attempts):
        return noted
    record = read_run_json_or_none(run)
    if record is None or not attempts:
        return None
    try:
        return from_attempts(attempts, devices_of(record), unit_of(record, _device(run)), _last_sign(run))
    except (KeyError, TypeError, ValueError):
        return None


def from_attempts(
    attempts: Sequence[Mapping[str, Any]],
    devices: int,
    unit: Unit,
    last_sign: tuple[int, str] | None = None,
) -> RunGpuHours:
    """By the times in attempt records; `last_sign`, an attempt's last sign of life, is for one not closed."""
    starts: list[StartGpuHours] = []
    before: Mapping[str, Any] | None = None
    for each in attempts:
        started, ended = each["started"], each.get("ended")
        if ended is None:
            ended = last_sign[1] if last_sign and last_sign[0] == each["attempt"] else started
        if seconds_between(started, ended) < 0:  # clocks of two machines
            ended = started
        submitted = each.get("submitted")
        if before is not None and before["submission"] == each["submission"]:
            submitted = starts[-1].ended  # the same job, started again
        starts.append(
            StartGpuHours(
                job_id=each["job_id"],
                submitted=submitted,
                started=started,
                ended=ended,
                elapsed_s=seconds_between(started, ended),
                devices=devices,
            )
        )
        before = each
    return summed("timestamps", unit, starts, len(attempts))


def summed(
    source: Literal["sacct", "timestamps"], unit: Unit, starts: Sequence[StartGpuHours], attempts: int
) -> RunGpuHours:
    """The sums over these starts."""
    waits = [max(0.0, seconds_between(s.submitted, s.started)) for s in starts if s.submitted is not None]
    return RunGpuHours(
        source=source,
        unit=unit,
        hours=sum(start.elapsed_s * start.devices for start in starts) / 3600,
        queue_wait_s=sum(waits) if waits else None,
        attempts=attempts,
        starts=list(starts),
    )


def total(usages: Iterable[RunGpuHours]) -> dict[Unit, float]:
    """Hours over several runs, by unit."""
    found: dict[Unit, float] = {}
    for usage in usages:
        found[usage.unit] = found.get(usage.unit, 0.0) + usage.hours
    return found


def bound_hours(record: Mapping[str, Any]) -> float:
    """What one start may use at most by its time limit, given the run's `run.json`."""
    return devices_of(record) * float(record["config"]["job"]["time_limit_min"]) / 60


def devices_of(record: Mapping[str, Any]) -> int:
    """GPUs of a run, or ranks where it has none."""
    resources = record["config"]["resources"]
    return int(resources["nodes"]) * int(resources["gpus_per_node"])


def unit_of(record: Mapping[str, Any], device: str | None) -> Unit:
    """What its hours are of. A Slurm job holds the GPUs that it asked for; elsewhere the `device` tells that
    the run had, if it got so far."""
    wanted = record["config"]["resources"]["device"]
    if record["cluster"] == "slurm":
        on_gpu = wanted != "cpu"
    else:
        on_gpu = device != "cpu" if device else wanted == "cuda"
    return "GPU-hours" if on_gpu else "CPU rank-hours"


def attempt_records(run: RunDir) -> list[dict[str, Any]]:
    """The attempts' records that can be read, oldest first."""
    return [record for each in run.attempts() if (record := read_json_or_none(each.record)) is not None]


def seconds_between(first: str, last: str) -> float:
    """Between two times in ISO 8601."""
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def iso(epoch_s: float) -> str:
    """A time as records write it."""
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds")


def _noted(run: RunDir) -> RunGpuHours | None:
    try:
        return RunGpuHours.model_validate(read_json(run.usage))
    except (OSError, CorruptFile, ValidationError):
        return None


def _device(run: RunDir) -> str | None:
    device = (read_json_or_none(run.metrics) or {}).get("device")
    return device if isinstance(device, str) else None


def _last_sign(run: RunDir) -> tuple[int, str] | None:
    """The attempt that wrote last, and when."""
    progress = read_json_or_none(run.progress) or {}
    if not {"attempt", "updated"} <= progress.keys():
        return None
    return progress["attempt"], iso(progress["updated"])
