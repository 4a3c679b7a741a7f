"""GPU-hours and queue time of runs: from the scheduler's accounting, else from the times of attempts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from disttrain.records import gpu_hours
from disttrain.records.gpu_hours import RunGpuHours, StartGpuHours
from disttrain.records.json_files import CorruptFile, write_json
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json_or_none
from jobs.core import journal
from jobs.schedulers import names
from jobs.schedulers.interface import AccountedStart, Scheduler, Unreachable, is_submitted_to
from jobs.schedulers.select import scheduler_named


def usage_of_runs(runs: Iterable[RunDir]) -> dict[Path, RunGpuHours]:
    """Usage of each run that has any, by the run's folder. Writes nothing."""
    runs = list(runs)
    files = {run.path: found for run in runs if (found := gpu_hours.read(run)) is not None}
    open_ones = [run for run in runs if run.path not in files or files[run.path].source == "timestamps"]
    return files | {path: found for path, (found, _) in _accounted(open_ones).items()}


def record_usage(runs: Iterable[RunDir]) -> None:
    """Write `usage.json` of runs whose jobs have ended by accounting.

    A later report then needs no scheduler, and has the figures after accounting has dropped them.
    """
    runs = list(runs)
    missing = [run for run in runs if (found := gpu_hours.read(run)) is None or found.source == "timestamps"]
    for path, (found, over) in _accounted(missing).items():
        if over:
            with contextlib.suppress(OSError):  # runs of another user: the times of attempts remain
                write_json(RunDir(path).usage, found.model_dump(mode="json"))


def accounted_usage(
    starts_of: Mapping[str, Sequence[AccountedStart]],
    source: Literal["sacct"],
    run: Mapping[str, Any],
    attempts: Sequence[Mapping[str, Any]],
) -> tuple[RunGpuHours, bool] | None:
    """Usage by accounting, and whether the figures are final.

    `starts_of` has the starts of each of the run's jobs, `run` is its `run.json`. Starts that ended before an
    attempt count. None if no job has started, or if accounting lacks a job that made an attempt.
    """
    if any(not starts_of.get(each["job_id"]) for each in attempts):
        return None
    unit = gpu_hours.unit_of(run, None)
    devices = gpu_hours.devices_of(run, unit)
    own = sorted(
        (each for found in starts_of.values() for each in found), key=lambda each: each.submitted or 0.0
    )
    starts = [
        StartGpuHours(
            job_id=each.job_id,
            submitted=None if each.submitted is None else gpu_hours.iso(each.submitted),
            started=gpu_hours.iso(each.started),
            ended=gpu_hours.iso(each.ended or each.started + each.elapsed_s),
            elapsed_s=each.elapsed_s,
            devices=devices if unit != "GPU-hours" or each.gpus is None else each.gpus,
        )
        for each in own
        if each.started is not None
    ]
    if not starts:
        return None
    final = all(each.ended is not None for each in own)
    return gpu_hours.summed(source, unit, starts, len(attempts)), final


def _accounted(runs: Sequence[RunDir]) -> dict[Path, tuple[RunGpuHours, bool]]:
    """Usage by accounting: one query to each scheduler. Empty where there is no accounting."""
    found: dict[Path, tuple[RunGpuHours, bool]] = {}
    for name in names():
        scheduler = scheduler_named(name)
        if scheduler.accounting is None:
            continue
        known = [
            (run, jobs, attempts)
            for run in runs
            if (attempts := _attempts_on(run, name)) is not None
            and (jobs := _jobs_on(run, scheduler, attempts))
        ]
        if not known:
            continue
        try:
            starts = scheduler.accounted(sorted({job_id for _, jobs, _ in known for job_id in jobs}))
        except Unreachable:
            continue
        for run, jobs, attempts in known:
            record = read_run_json_or_none(run)
            own = {job_id: starts[job_id] for job_id in jobs}
            with contextlib.suppress(KeyError, TypeError, ValueError):  # a damaged record
                if record and (usage := accounted_usage(own, scheduler.accounting, record, attempts)):
                    counted = {"submissions": gpu_hours.submission_count(run)}
                    found[run.path] = (usage[0].model_copy(update=counted), usage[1])
    return found


def _attempts_on(run: RunDir, scheduler: str) -> list[dict[str, Any]] | None:
    """Attempts of a run if all of them were on this scheduler, else None."""
    attempts = gpu_hours.attempt_records(run)
    only = all(each.get("cluster") == scheduler and each.get("job_id") for each in attempts)
    return attempts if only else None


def _jobs_on(run: RunDir, scheduler: Scheduler, attempts: Sequence[Mapping[str, Any]]) -> set[str]:
    """All jobs of a run, including those that never started it. Empty if one is on another cluster."""
    jobs = {str(each["job_id"]) for each in attempts}
    for entry in journal.entries(run):
        with contextlib.suppress(CorruptFile):
            intent, receipt = entry.read("intent") or {}, entry.read("receipt") or {}
            if intent.get("cluster") != scheduler.name:
                continue
            if not is_submitted_to(scheduler, scheduler.name, intent.get("cluster_name")):
                return set()
            if receipt.get("job_id"):
                jobs.add(str(receipt["job_id"]))
    return jobs
