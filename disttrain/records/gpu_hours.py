"""GPU-hours and queue time of a run: the `usage.json` record, and its computation from attempt records.

Every attempt counts. Slurm's accounting, where it was recorded, replaces the attempts' own timestamps, and
counts jobs that ended before an attempt, too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError

from disttrain.records.base import Record
from disttrain.records.json_files import CorruptFile, read_json, read_json_or_none
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import asks_for_gpus, ranks_per_node

Unit = Literal["GPU-hours", "CPU rank-hours"]


class StartGpuHours(Record):
    """GPU-hours of one start of a run's job, and the queue time before it."""

    job_id: str | None
    submitted: str | None
    """UTC, ISO 8601: time of submission; after a requeue, the end of the previous start."""
    started: str
    ended: str
    """UTC, ISO 8601; of a start without a recorded end, the time of its last record."""
    elapsed_s: float
    devices: int | float
    """GPUs it held, or ranks where it had no GPU. Runs that share GPUs have equal parts of them."""


class RunGpuHours(Record):
    """`usage.json`: GPU-hours of an ended run by Slurm's accounting.

    Without this file they follow from the attempts' own timestamps.
    """

    source: Literal["sacct", "timestamps"]
    unit: Unit
    hours: float
    """Hours in `unit`, summed over all starts."""
    queue_wait_s: float | None
    """Queue time in seconds, summed over all starts; null without a known submission."""
    attempts: int
    """Number of attempts at the time of counting."""
    submissions: int | None = None
    """Number of submitted jobs at the time of counting; null if timestamps were counted."""
    starts: list[StartGpuHours]


def read(
    run: RunDir, record: Mapping[str, Any] | None = None, device: str | None = None
) -> RunGpuHours | None:
    """The run's GPU-hours: from `usage.json` if it is up to date, else from its attempts' timestamps.

    `record` (of `run.json`) and `device` (of `metrics.json`) are read from their files if None.

    None without an attempt and without such a file, or if `run.json` cannot be read.
    """
    attempts = attempt_records(run)
    noted = _noted(run)
    if noted and (noted.attempts, noted.submissions) == (len(attempts), submission_count(run)):
        return noted
    record = record or read_json_or_none(run.run_json)
    if record is None or not attempts:
        return None
    try:
        unit = unit_of(record, device or (read_json_or_none(run.metrics) or {}).get("device"))
        return from_attempts(attempts, devices_of(record, unit), unit, last_progress(run))
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None


def from_attempts(
    attempts: Sequence[Mapping[str, Any]],
    devices: float,
    unit: Unit,
    last_progress: tuple[int, str] | None = None,
) -> RunGpuHours:
    """GPU-hours from attempt records.

    `last_progress` is (attempt, time of its last record): the end of an attempt without a recorded end.
    Another attempt without one counts as ended at its start.
    """
    starts: list[StartGpuHours] = []
    submission = None
    for attempt in attempts:
        started, ended = attempt["started"], attempt.get("ended")
        if ended is None and last_progress and last_progress[0] == attempt["attempt"]:
            ended = last_progress[1]
        if ended is None or seconds_between(started, ended) < 0:  # the clocks of two machines differ
            ended = started
        is_requeue = submission == attempt["submission"]
        submission = attempt["submission"]
        starts.append(
            StartGpuHours(
                job_id=attempt["job_id"],
                submitted=starts[-1].ended if is_requeue else attempt.get("submitted"),
                started=started,
                ended=ended,
                elapsed_s=seconds_between(started, ended),
                devices=devices,
            )
        )
    return summed("timestamps", unit, starts, len(attempts))


def summed(
    source: Literal["sacct", "timestamps"], unit: Unit, starts: Sequence[StartGpuHours], attempts: int
) -> RunGpuHours:
    """GPU-hours and queue time summed over `starts`."""
    waits = [max(0.0, seconds_between(s.submitted, s.started)) for s in starts if s.submitted is not None]
    return RunGpuHours(
        source=source,
        unit=unit,
        hours=sum(start.elapsed_s * start.devices for start in starts) / 3600,
        queue_wait_s=sum(waits) if waits else None,
        attempts=attempts,
        starts=list(starts),
    )


def bound_hours(record: Mapping[str, Any], unit: Unit) -> float | None:
    """Upper bound of one start's hours in `unit` by its time limit, given the run's `run.json`; None if that
    is damaged, or of an ingested run."""
    try:
        return devices_of(record, unit) * float(record["config"]["job"]["time_limit_min"]) / 60
    except (KeyError, TypeError, ValueError):
        return None


def devices_of(record: Mapping[str, Any], unit: Unit) -> float:
    """Number of GPUs of a run whose hours have this unit, or of ranks where it has no GPU."""
    config = record["config"]
    resources = config["resources"]
    of_node = resources["gpus_per_node"] if unit == "GPU-hours" else ranks_per_node(config)
    devices = int(resources["nodes"]) * int(of_node)
    if unit == "GPU-hours" and resources.get("share_gpus"):
        return devices / int(record.get("runs_per_job", 1))
    return devices


def unit_of(record: Mapping[str, Any], device: str | None) -> Unit:
    """Unit of the run's hours.

    A Slurm job holds the GPUs that it requested. Elsewhere the recorded `device` decides, or
    `resources.device` where none was recorded. Ranks that share a GPU count as ranks.
    """
    wanted = record["config"]["resources"]["device"]
    if record["cluster"] == "slurm" or not asks_for_gpus(wanted):
        on_gpu = asks_for_gpus(wanted)
    else:
        on_gpu = device != "cpu" if device else wanted == "cuda"
    return "GPU-hours" if on_gpu else "CPU rank-hours"


def submission_count(run: RunDir) -> int:
    """Number of submissions of a run for which a scheduler has returned a job id."""
    with contextlib.suppress(OSError):
        return sum(name.endswith(".receipt.json") for name in os.listdir(run.submissions))
    return 0


def attempt_records(run: RunDir) -> list[dict[str, Any]]:
    """The readable attempt records, oldest first."""
    return [record for each in run.attempts() if (record := read_json_or_none(each.record)) is not None]


def seconds_between(first: str, last: str) -> float:
    """Seconds from `first` to `last`, both in ISO 8601."""
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def iso(epoch_s: float) -> str:
    """Seconds since the epoch as UTC in ISO 8601, with milliseconds."""
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds")


def _noted(run: RunDir) -> RunGpuHours | None:
    """`usage.json`; None without it, or where its times cannot be used."""
    try:
        noted = RunGpuHours.model_validate(read_json(run.usage))
        for start in noted.starts:
            seconds_between(start.submitted or start.started, start.ended)
            seconds_between(start.started, start.ended)
    except (OSError, CorruptFile, ValidationError, TypeError, ValueError):
        return None
    return noted


def last_progress(run: RunDir) -> tuple[int, str] | None:
    """(attempt, time) of the newest `progress.json`."""
    progress = read_json_or_none(run.progress) or {}
    if not {"attempt", "updated"} <= progress.keys():
        return None
    return progress["attempt"], iso(progress["updated"])
