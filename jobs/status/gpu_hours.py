"""What runs used, with Slurm's accounting asked for those whose jobs it knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.records import gpu_hours
from disttrain.records.gpu_hours import RunGpuHours, StartGpuHours
from disttrain.records.json_files import CorruptFile, write_json
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json_or_none
from jobs.core import journal
from jobs.schedulers.slurm import accounting
from jobs.schedulers.slurm.accounting import JobRecord
from jobs.schedulers.slurm.commands import SlurmCommandError


def used(runs: Iterable[RunDir]) -> dict[Path, RunGpuHours]:
    """What each run used, by its folder; runs of which nothing is known are left out. Writes nothing."""
    runs = list(runs)
    files = {run.path: found for run in runs if (found := gpu_hours.read(run)) is not None}
    open_ones = [run for run in runs if run.path not in files or files[run.path].source != "sacct"]
    return files | {path: found for path, (found, _) in _accounted(open_ones).items()}


def note(runs: Iterable[RunDir]) -> None:
    """Write `usage.json` of those runs whose jobs are over by Slurm's accounting and that have none yet: a
    report then needs no Slurm, and finds the figures after Slurm has dropped them."""
    runs = list(runs)
    missing = [run for run in runs if (found := gpu_hours.read(run)) is None or found.source != "sacct"]
    for path, (found, over) in _accounted(missing).items():
        if over:
            with contextlib.suppress(OSError):  # somebody else's runs: the attempts' own times have to do
                write_json(RunDir(path).usage, found.model_dump(mode="json"))


def from_records(
    records: Sequence[JobRecord],
    jobs: Iterable[str],
    run: Mapping[str, Any],
    attempts: Sequence[Mapping[str, Any]],
) -> tuple[RunGpuHours, bool] | None:
    """RunGpuHours by accounting, and whether it is over: the figures will not change any more.

    `jobs` are the run's, `run` its `run.json`. None if accounting does not know a job that made an attempt.
    """
    told = {job_id: accounting.of_job(records, job_id) for job_id in jobs}
    if not attempts or any(not told.get(each["job_id"]) for each in attempts):
        return None
    unit, devices = gpu_hours.unit_of(run, None), gpu_hours.devices_of(run)
    own = sorted((each for found in told.values() for each in found), key=lambda each: each.submitted or 0.0)
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
    over = all(each.ended is not None for each in own)
    return gpu_hours.summed("sacct", unit, starts, len(attempts)), over


def _accounted(runs: Sequence[RunDir]) -> dict[Path, tuple[RunGpuHours, bool]]:
    """By accounting: one question for all runs on Slurm. Empty where there is no accounting."""
    known = [
        (run, jobs, attempts)
        for run in runs
        if (attempts := _attempts(run)) and (jobs := _jobs(run, attempts))
    ]
    if not known:
        return {}
    try:
        records = accounting.records(job_id for _, jobs, _ in known for job_id in jobs)
    except SlurmCommandError:
        return {}
    found = {}
    for run, jobs, attempts in known:
        record = read_run_json_or_none(run)
        with contextlib.suppress(KeyError, TypeError, ValueError):  # a damaged record
            if record and (told := from_records(records, jobs, record, attempts)):
                found[run.path] = told
    return found


def _attempts(run: RunDir) -> list[dict[str, Any]]:
    """Of a run that was only ever on Slurm; else empty."""
    attempts = gpu_hours.attempt_records(run)
    return attempts if all(each.get("cluster") == "slurm" and each.get("job_id") for each in attempts) else []


def _jobs(run: RunDir, attempts: Sequence[Mapping[str, Any]]) -> set[str]:
    """All jobs of a run, those too that never started it."""
    jobs = {str(each["job_id"]) for each in attempts}
    for entry in journal.entries(run):
        with contextlib.suppress(CorruptFile):
            intent, receipt = entry.read("intent") or {}, entry.read("receipt") or {}
            if intent.get("cluster") == "slurm" and receipt.get("job_id"):
                jobs.add(str(receipt["job_id"]))
    return jobs
