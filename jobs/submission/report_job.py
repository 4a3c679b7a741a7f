"""Submit the report job of a sweep, which runs `disttrain report` after all runs have ended.

    runs/<sweep>/.report/submissions/    journal of the report job (`jobs.core.journal`), without claims
    runs/<sweep>/added_runs.json         commands that the job repeats first, since they may add runs

A sweep has one report job at a time. When more runs are submitted, a new report job that waits for all of
them replaces the former one. A report may be written twice, or before the last run ends; the next `report`
replaces it. A report job that adds runs writes none; another one follows these runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from disttrain.errors import in_one_line
from disttrain.records.collect_provenance import code_hash
from disttrain.records.json_files import json_text, read_json_or_none, write_bytes
from disttrain.records.run_directory import RunDir
from jobs.core import journal, run_code
from jobs.core.processes import host
from jobs.schedulers.interface import (
    Scheduler,
    Submission,
    SubmitError,
    Unreachable,
    is_submitted_to,
    submission_tag,
)
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_runs
from jobs.submission.decide import active_jobs, submission_time


def journal_of(root: Path, sweep: str) -> RunDir:
    return RunDir(root / sweep / ".report")


def ensure(
    root: Path,
    sweep: str,
    scheduler: Scheduler,
    *,
    anew: bool,
    command: Sequence[str] = (),
    own: int | None = None,
) -> str | None:
    """Make sure that a report job waits for the active runs of a sweep; its id, or None without such runs.

    Without such runs, a report job that has ended without a report is submitted again. `anew`: runs were
    submitted that the present report job does not wait for. `command`: arguments of `disttrain` that the job
    repeats to add runs. `own`: submission of the report job that calls this function, which has another one
    follow. The caller holds `sweep_lock`. Raises `SubmitError`.
    """
    states = refresh(read_runs(root, sweep), scheduler, receipts=True)
    awaited, folder = active_jobs(states, scheduler), journal_of(root, sweep)
    if command:
        _record_command(root / sweep, command)
    there = _alive(folder, scheduler)
    if awaited and own is not None:
        there.pop(own, None)
    if not awaited and (there or not states or not _ended_without_report(folder)):
        return None
    if there and not anew:
        _followed(folder, own)
        return there[max(there)]
    newest = max(awaited or states, key=submission_time).run  # its code can read the records of all the runs
    arguments = ["report", sweep, "--runs", str(root.absolute())]
    job_id = _submit(folder, [str(state.job_id) for state in awaited], newest, scheduler, arguments)
    _followed(folder, own)
    former = {job: Submission.announced(folder, number) for number, job in there.items()}
    refused = scheduler.cancel({job: each.tag for job, each in former.items()})
    for job in former.keys() - refused.keys():
        message = "replaced by a report job that waits for more runs"
        journal.revoke(folder, former[job].number, "cancelled", message)
    return job_id


def _followed(folder: RunDir, own: int | None) -> None:
    """Record that another report job follows the one of submission `own`, which then writes no report."""
    if own is not None:
        journal.revoke(folder, own, "lost", "another report job follows the runs that it added")


def _ended_without_report(folder: RunDir) -> bool:
    """Whether the job of the newest report has ended, and no report is newer than its submission."""
    newest = next(reversed(journal.entries(folder)), None)
    if newest is None or (newest.read("claim") or {}).get("cause") != "lost":
        return False
    try:
        written = os.stat(folder.path.parent / "report" / "report.html").st_mtime
    except FileNotFoundError:
        return True
    return journal.utc_time(written) < (newest.read("intent") or {})["time"]


def _submit(
    folder: RunDir, after: Sequence[str], newest: RunDir, scheduler: Scheduler, arguments: list[str]
) -> str:
    tag = submission_tag(folder, journal.next_submission(folder))
    intent = {
        "cluster": scheduler.name,
        "cluster_name": scheduler.cluster_name(),
        "host": host(),
        "handle": tag,
        "index": None,
        "after": after,
    }
    number = journal.write_intent(folder, intent)
    record = read_json_or_none(newest.run_json) or {}
    program = str(run_code.code_of_run(newest, record) / "submit.py")
    words = [program, *arguments, "--sweep-end", str(number)]
    try:
        job_id = scheduler.submit_after(Submission(folder, number, tag), words, after, record.get("profile"))
    except Unreachable:
        raise
    except SubmitError as error:
        journal.revoke(folder, number, "launch_failed", str(error))
        raise
    journal.write_receipt(folder, number, job_id)
    return job_id


def _record_command(sweep: Path, arguments: Sequence[str]) -> None:
    """Record a command that adds runs, in place of one that differs in the rule of repeats alone.

    Only the owner may read the file: arguments may have secrets.
    """
    known = [
        each for each in _commands(sweep) if _without_rule(each["arguments"]) != _without_rule(arguments)
    ]
    new = {"arguments": [*arguments], "folder": str(Path.cwd()), "code": str(run_code.CODE_ROOT)}
    write_bytes(sweep / "added_runs.json", json_text({"commands": [*known, new]}).encode(), mode=0o600)


def _without_rule(arguments: Sequence[str]) -> list[str]:
    pairs = zip(arguments, ["", *arguments], strict=False)
    return [each for each, before in pairs if before != "--repeats" and not each.startswith("--repeats")]


def _commands(sweep: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (read_json_or_none(sweep / "added_runs.json") or {}).get("commands", [])
    return found


def add_runs(sweep: Path, number: int) -> bool:
    """Repeat the recorded commands as the report job of this submission; whether another one follows.

    Code that is unchanged since the submission runs where it was, and has the commit for the records.
    """
    for each in _commands(sweep):
        code = Path(each["code"])
        code = code if code_hash(code) == code_hash() else run_code.CODE_ROOT
        verb, *arguments = each["arguments"]
        command = [sys.executable, str(code / "submit.py"), verb, "--report-job", str(number), *arguments]
        path = os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            subprocess.run(command, cwd=each["folder"], env={**os.environ, "PYTHONPATH": path}, check=False)
        except OSError as error:  # the folder of the command may be gone
            print(f"warning: no repeats are added: {in_one_line(error)}", file=sys.stderr)
    return (
        bool(_commands(sweep))
        and journal.entry(journal_of(sweep.parent, sweep.name), number).read("claim") is not None
    )


def waits_for(root: Path, sweep: str, states: Sequence[RunState]) -> bool:
    """Whether a report job was submitted to start after one of these runs, and was not replaced."""
    job_ids = {state.job_id for state in states} - {None}
    return any(
        job_ids & set((entry.read("intent") or {}).get("after", ()))
        for entry in journal.entries(journal_of(root, sweep))
        if "claim" not in (entry.parts or ())
    )


def _alive(folder: RunDir, scheduler: Scheduler) -> dict[int, str]:
    """Ids of pending and running report jobs of this cluster, by submission number.

    Revokes the submissions of those that have ended.
    """
    job_ids: dict[int, str | None] = {}
    for entry in journal.entries(folder):
        intent = entry.read("intent") or {}
        is_here = is_submitted_to(scheduler, intent.get("cluster"), intent.get("cluster_name"))
        if is_here and "claim" not in (entry.parts or ()):
            job_ids[entry.number] = (entry.read("receipt") or {}).get("job_id")
    lost = [Submission.announced(folder, number) for number, job_id in job_ids.items() if job_id is None]
    for submission, job_id in zip(lost, scheduler.find(lost) if lost else (), strict=True):
        if job_id is not None:
            journal.write_receipt(folder, submission.number, job_id)
            job_ids[submission.number] = job_id
    known = {number: job_id for number, job_id in job_ids.items() if job_id is not None}
    jobs = scheduler.poll(list(known.values()))
    alive = {number: job for number, job in known.items() if jobs[job].status not in ("ended", "not_found")}
    for number in job_ids.keys() - alive.keys():
        message = "its job has ended" if number in known else "no job was found for it"
        journal.revoke(folder, number, "lost", message)
    return alive
