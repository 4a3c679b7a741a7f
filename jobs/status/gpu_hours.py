"""GPU-hours and queue time of runs: from the scheduler's accounting, else from the times of attempts."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from disttrain.records import gpu_hours
from disttrain.records.gpu_hours import RunGpuHours, StartGpuHours
from disttrain.records.json_files import CorruptFile, read_json_or_none, write_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.schedulers import names
from jobs.schedulers.interface import AccountedStart, Scheduler, Unreachable, is_submitted_to
from jobs.schedulers.select import scheduler_named


def usage_of_runs(runs: Iterable[RunDir], *, write: bool = False) -> dict[Path, RunGpuHours]:
    """Usage of each run that has any, by the run's folder.

    `write` records the figures of accounting in `usage.json` of runs whose jobs have ended. A later report
    then needs no scheduler, and has the figures after accounting has dropped them.
    """
    runs = list(runs)
    usage = {run.path: recorded for run in runs if (recorded := gpu_hours.read(run)) is not None}
    open_ones = [run for run in runs if run.path not in usage or usage[run.path].source == "timestamps"]
    for path, (accounted, is_final) in _accounted(open_ones).items():
        usage[path] = accounted
        if write and is_final:
            with contextlib.suppress(OSError):  # runs of another user: the times of attempts remain
                write_json(RunDir(path).usage, accounted.model_dump(mode="json"))
    return usage


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
    own = sorted(itertools.chain(*starts_of.values()), key=lambda each: each.submitted or 0.0)
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
    usage: dict[Path, tuple[RunGpuHours, bool]] = {}
    for scheduler in map(scheduler_named, names()):
        if scheduler.accounting is None:
            continue
        attempts_of = {run: gpu_hours.attempt_records(run) for run in runs}
        jobs_of = {run: _jobs_on(run, scheduler, attempts) for run, attempts in attempts_of.items()}
        try:
            starts = scheduler.accounted(sorted(jobs)) if (jobs := set().union(*jobs_of.values())) else {}
        except Unreachable:
            continue
        for run, jobs in jobs_of.items():
            record = read_json_or_none(run.run_json)
            own = {job_id: starts[job_id] for job_id in jobs}
            with contextlib.suppress(KeyError, TypeError, ValueError):  # a damaged record
                if (
                    own
                    and record
                    and (counted := accounted_usage(own, scheduler.accounting, record, attempts_of[run]))
                ):
                    submissions = {"submissions": gpu_hours.submission_count(run)}
                    usage[run.path] = (counted[0].model_copy(update=submissions), counted[1])
    return usage


def _jobs_on(run: RunDir, scheduler: Scheduler, attempts: Sequence[Mapping[str, Any]]) -> set[str]:
    """All jobs of a run, including those that never started it. Empty if one is on another cluster."""
    if not all(each.get("cluster") == scheduler.name and each.get("job_id") for each in attempts):
        return set()
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
