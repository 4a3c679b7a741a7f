"""Submit runs: write an intent, submit to the scheduler, write a receipt with the job id.

Each step is journaled (`jobs.core.journal`), so repeating the command continues after a submitter was killed
at any point. The caller holds `sweep_lock` from reading the states on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError
from disttrain.records import collect_provenance
from disttrain.records.json_files import create_exclusive, read_json_or_none, write_json
from disttrain.records.run_directory import RunDir, rename_aside
from jobs.core import code_copy, journal, run_code
from jobs.core.attempt import checkpoint_folder
from jobs.core.code_copy import CommandReader
from jobs.core.processes import host
from jobs.core.progress import Progress, without_progress
from jobs.schedulers.interface import (
    LimitReached,
    Scheduler,
    Submission,
    SubmitError,
    SubmitQuota,
    Unreachable,
)
from jobs.submission.batches import JobChains, batch_of, submission_groups
from jobs.submission.decide import Action, Kind
from jobs.submission.prepare import PreparedRun, prepare


def carry_out(
    actions: Sequence[Action],
    scheduler: Scheduler,
    root: Path,
    *,
    current_job: str | None = None,
    chains: JobChains | None = None,
    skip_preflight: bool = False,
    progress: Progress = without_progress,
) -> list[Action]:
    """Submit the runs whose action is `submit` or `retry`; return all actions, with job ids.

    Runs lie in `root/<sweep>/<run>`. A run that has started in the meantime becomes `in_progress`, one whose
    `run.json` cannot be read `blocked`, one above a limit of jobs `deferred`. A refusal of the scheduler ends
    the submission: the action of a refused run has the `error`, and its folder goes if the run is new. With
    `current_job`, the id of the job that this process belongs to, the run is journaled under this id and
    nothing is submitted. `chains` limits the number of runs at the same time. `skip_preflight` records
    `job.preflight=off`.
    """
    if not any(action.submits for action in actions):
        return list(actions)
    with code_copy.hold_copies(Path(root)):
        provenance = collect_provenance.collect()
        taken = "start" if current_job else "submission"
        snapshot = code_copy.copy_code(Path(root), progress=progress)
        provenance["code"] = {**provenance["code"], **snapshot, "taken": taken}
        results = list(actions)
        prepared = []
        commands = CommandReader(Path(root))
        found_runs = prepare(
            actions,
            scheduler,
            root,
            provenance,
            commands,
            skip_preflight=skip_preflight,
            has_job=current_job is not None,
        )
        for position, found in enumerate(found_runs):
            if isinstance(found, PreparedRun):
                prepared.append(found)
            else:
                results[position] = found
        commands.write()
        if prepared:
            submitted = _submit_all(prepared, scheduler, current_job, chains)
            for position, result in progress(submitted, "submitting runs", len(prepared)):
                results[position] = result
    return results


def _submit_all(
    prepared: Sequence[PreparedRun],
    scheduler: Scheduler,
    current_job: str | None,
    chains: JobChains | None,
) -> Iterator[tuple[int, Action]]:
    quota = scheduler.quota() if current_job is None else SubmitQuota()
    todo = deque(submission_groups(prepared, scheduler, quota.array, chains))
    left, reason, refused = quota.jobs, f"{quota.limit} is reached", False
    while todo and not refused:
        group = todo.popleft()
        if left is not None and left < len(group):
            todo.appendleft(group[left:])
            group = group[:left]
        if not group:
            break
        try:
            done = _submit_group(group, scheduler, current_job, chains)
        except LimitReached as error:
            reason, half = f"{error} is reached", len(group) // 2
            if half == 0:
                todo.appendleft(group)
                break
            todo.extendleft((group[half:], group[:half]))  # bisection: submit as many as fit
            continue
        left = None if left is None else left - len(group)
        refused = any(action.error for _, action in done)
        yield from done
    for each in (each for group in todo for each in group):
        if not refused and not each.run.run_json.exists():
            _write_record(each.run, each.record)
        why = "not submitted after the refusal of another" if refused else reason
        yield each.position, dataclasses.replace(each.action, kind="deferred", reason=why)


def _submit_group(
    group: Sequence[PreparedRun],
    scheduler: Scheduler,
    current_job: str | None,
    chains: JobChains | None,
) -> list[tuple[int, Action]]:
    """Write the intents of a group, submit it, write the receipts. Raises `LimitReached`.

    After a kill between two of these steps, the tag in each intent identifies the jobs.
    """
    results = []
    settled = []
    moved: list[tuple[Path, Path]] = []
    for each in group:
        state = each.action.state
        if state is not None and state.submission is not None:
            # Its job was not found, or is not requeued yet. A job with a revoked submission exits.
            message = "submitted again"
            if not journal.revoke(each.run, state.submission, "lost", message, starts=state.starts):
                late = dataclasses.replace(each.action, kind="in_progress", reason="started in the meantime")
                results.append((each.position, late))
                continue
        settled.append(_from_scratch(each, moved) if each.action.from_scratch else each)
    if not settled:
        return results
    batch = batch_of(settled, chains)
    for each, submission in zip(settled, batch.submissions, strict=True):
        _write_intent(each, submission, scheduler, batch.after, by_hand=current_job is not None)
    try:
        job_ids = [current_job] if current_job else scheduler.submit(batch)
    except Unreachable as error:  # jobs may exist: the next command searches for them
        reason = f"whether it was submitted is not known: {error}"
        return results + _refused(settled, "deferred", reason, error)
    except (SubmitError, ConfigError) as error:
        for folder, aside in moved:
            os.rename(aside, folder)
        _revoke(settled, batch.submissions, error)
        if isinstance(error, LimitReached):
            raise
        return results + _refused(settled, "blocked", str(error), error)
    if chains is not None:
        chains.add(job_ids)
    for each, submission, job_id in zip(settled, batch.submissions, job_ids, strict=True):
        journal.write_receipt(submission.run, submission.number, job_id)
        results.append((each.position, dataclasses.replace(each.action, job_id=job_id)))
    return results


def _refused(
    group: Sequence[PreparedRun], kind: Kind, reason: str, error: SubmitError | ConfigError
) -> list[tuple[int, Action]]:
    return [
        (each.position, dataclasses.replace(each.action, kind=kind, reason=reason, error=error))
        for each in group
    ]


def _revoke(refused: Sequence[PreparedRun], submissions: Sequence[Submission], error: Exception) -> None:
    for each, submission in zip(refused, submissions, strict=True):
        journal.revoke(submission.run, submission.number, "launch_failed", str(error))
        if each.action.state is None and not isinstance(error, LimitReached):
            _remove_new_run(each.run)


def _from_scratch(prepared: PreparedRun, moved: list[tuple[Path, Path]]) -> PreparedRun:
    """The run, whose checkpoints are set aside; the reason of its action names their folder.

    Their former and present paths are appended to `moved`.
    """
    folder = checkpoint_folder(prepared.run, prepared.record["config"])
    if not folder.exists():
        return prepared
    aside = rename_aside(folder, "aside")
    moved.append((folder, aside))
    reason = f"{prepared.action.reason}, its checkpoints are now in {aside.name}"
    return dataclasses.replace(prepared, action=dataclasses.replace(prepared.action, reason=reason))


def _remove_new_run(run: RunDir) -> None:
    """Remove the folder of a run whose only submission was refused. Other files in it stay."""
    for path in (*run.submissions.glob("*.json"), run.script, run.run_json):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        run.submissions.rmdir()
        run.path.rmdir()


def _write_intent(
    prepared: PreparedRun,
    submission: Submission,
    scheduler: Scheduler,
    after: Sequence[str],
    *,
    by_hand: bool,
) -> None:
    _write_record(prepared.run, prepared.record)
    code_hash, command = run_code.hash_in(prepared.record), run_code.command_record(prepared.record)
    state = prepared.action.state
    attempts = state.attempts if state else 0
    same_code = state is not None and state.code_hash == code_hash
    intent = {
        "cluster": scheduler.name,
        "cluster_name": scheduler.cluster_name(),
        "host": host(),
        "handle": None if by_hand else submission.tag,
        "index": submission.index,
        "after": list(after),
        "config_key": prepared.record["config_key"],
        "run_key": prepared.record["run_key"],
        "code_hash": code_hash,
        "source": None if command is None else command["source"] or "",
        "attempts": attempts,
        "attempts_before_code": state.attempts_before_code if state and same_code else attempts,
    }
    number = journal.write_intent(prepared.run, intent)
    assert number == submission.number, "the caller holds the lock of the sweep"


def _write_record(run: RunDir, record: Mapping[str, Any]) -> None:
    """Write `run.json`, unless the existing one differs at most in provenance other than the code's path.

    A former `run.json` of other content (code, scheduler, a raised limit) is copied to the folder of the last
    attempt.
    """
    former = read_json_or_none(run.run_json)
    if former is not None:
        if _what_counts(former) == _what_counts(record):
            return
        attempts = run.attempts()
        if attempts:  # keeps an existing copy: then no attempt was made with the former record
            create_exclusive(attempts[-1].path / "run.json", former)
    write_json(run.run_json, record)


def _what_counts(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with its provenance reduced to the code copies and the folder in which jobs run."""
    provenance = record.get("provenance") or {}
    code, command = provenance.get("code") or {}, provenance.get("command") or {}
    return {**record, "provenance": [code.get("path"), command.get("path"), command.get("folder")]}
