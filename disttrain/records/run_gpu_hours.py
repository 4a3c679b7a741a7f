"""What a run used: GPU-hours and time in the queue, every attempt counted. From files alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError

from disttrain.records.gpu_hours import Usage, UsedStart
from disttrain.records.json_files import CorruptFile, read_json, read_json_or_none
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json_or_none

Unit = Literal["GPU-hours", "CPU rank-hours"]


def read(run: RunDir) -> Usage | None:
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
) -> Usage:
    """By the times in attempt records; `last_sign`, an attempt's last sign of life, is for one not closed."""
    starts: list[UsedStart] = []
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
            UsedStart(
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
    source: Literal["sacct", "timestamps"], unit: Unit, starts: Sequence[UsedStart], attempts: int
) -> Usage:
    """The sums over these starts."""
    waits = [max(0.0, seconds_between(s.submitted, s.started)) for s in starts if s.submitted is not None]
    return Usage(
        source=source,
        unit=unit,
        hours=sum(start.elapsed_s * start.devices for start in starts) / 3600,
        queue_wait_s=sum(waits) if waits else None,
        attempts=attempts,
        starts=list(starts),
    )


def total(usages: Iterable[Usage]) -> dict[Unit, float]:
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


def _noted(run: RunDir) -> Usage | None:
    try:
        return Usage.model_validate(read_json(run.usage))
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
