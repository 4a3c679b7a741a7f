"""Submit runs: write an intent, submit to the scheduler, write a receipt with the job id.

Each step is journaled (`jobs.core.journal`), so repeating the command continues after a submitter was killed
at any point. The caller holds `sweep_lock` from reading the states on.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError
from disttrain.records import collect_provenance
from disttrain.records.json_files import create_exclusive, read_json_or_none, write_json
from disttrain.records.run_directory import RunDir, rename_aside
from jobs.core import code_copy, journal, run_code
from jobs.core.attempt import checkpoint_folder
from jobs.core.processes import host
from jobs.core.progress import Progress, without_progress
from jobs.schedulers.interface import (
    Batch,
    LimitReached,
    Scheduler,
    Submission,
    SubmitError,
    SubmitQuota,
    Unreachable,
)
from jobs.status.run_state import RunState
from jobs.submission.decide import Action, JobChains
from jobs.submission.dependencies import NO_DEPENDENCIES, Dependencies
from jobs.submission.prepare import PreparedRun, batch_of, prepare, submission_groups


def carry_out(
    actions: Sequence[Action],
    scheduler: Scheduler,
    root: Path,
    *,
    current_job: str | None = None,
    chains: JobChains | None = None,
    dependencies: Dependencies = NO_DEPENDENCIES,
    skip_preflight: bool = False,
    progress: Progress = without_progress,
) -> list[Action]:
    """Submit the runs of one sweep whose action is `submit` or `retry`; return all actions, with job ids.

    Runs lie in `root/<sweep>/<run>`. A run that has started in the meantime becomes `in_progress`, one whose
    `run.json` cannot be read `blocked`, one above a limit of jobs `deferred`. A refusal of the scheduler ends
    the submission: the action of a refused run has the `error`, and its folder goes if the run is new. With
    `current_job`, the id of the job that this process belongs to, the run is journaled under this id and
    nothing is submitted. `chains` limits the number of runs at the same time, and `dependencies` are the jobs
    that they wait for. `skip_preflight` records `job.preflight=off`.
    """
    if not any(action.submits for action in actions):
        return list(actions)
    with code_copy.hold_copies(root):
        provenance = collect_provenance.collect()
        taken = {"taken": "start" if current_job else "submission"}
        configs = [_config(action, root) for action in actions if action.submits]
        code = code_copy.copy_code(root, progress=progress, configs=configs)
        provenance["code"] = {**provenance["code"], **code, **taken}
        commands = code_copy.CommandReader(root)
        options = {"skip_preflight": skip_preflight, "excluding": current_job is None}
        found = list(prepare(actions, scheduler, root, provenance, commands, **options))
        commands.write()
        prepared = [each for each in found if isinstance(each, PreparedRun)]
        submitted = (
            _Submitter(scheduler, current_job, chains, dependencies).submit(prepared) if prepared else ()
        )
        done = {action.name: action for action in progress(submitted, "submitting runs", len(prepared))}
    return [done[each.action.name] if isinstance(each, PreparedRun) else each for each in found]


def _config(action: Action, root: Path) -> dict[str, Any]:
    """The config that the run of an action will have, or has; empty if its record cannot be read."""
    if action.plan is not None:
        return action.plan.config.model_dump(mode="json")
    record = read_json_or_none(RunDir(root / action.sweep / action.name).run_json) or {}
    return dict(record.get("config", {}))


@dataclass(frozen=True)
class _Submitter:
    scheduler: Scheduler
    current_job: str | None
    chains: JobChains | None
    dependencies: Dependencies

    def submit(self, prepared: Sequence[PreparedRun]) -> Iterator[Action]:
        """Submit groups of runs until a refusal, or as many as a limit of jobs permits."""
        quota = self.scheduler.quota() if self.current_job is None else SubmitQuota()
        limits = (self.chains, self.dependencies)
        todo = deque(submission_groups(prepared, self.scheduler, quota.array, *limits))
        left, reason, refused = quota.jobs, f"{quota.limit} is reached", False
        while todo and not refused:
            group = todo.popleft()
            of_job = group[0].runs_per_job
            if left is not None and left * of_job < len(group):
                todo.appendleft(group[left * of_job :])
                group = group[: left * of_job]
            if not group:
                break
            try:
                done = self._submit_group(group)
            except LimitReached as error:
                reason, half = f"{error} is reached", len(group) // of_job // 2 * of_job
                if half == 0:
                    todo.appendleft(group)
                    break
                todo.extendleft((group[half:], group[:half]))  # bisection: submit as many as fit
                continue
            left = None if left is None else left - math.ceil(len(group) / of_job)
            refused = any(action.error for action in done)
            yield from done
        if refused:
            reason = "not submitted after the refusal of another"
        for each in (each for group in todo for each in group):
            if not refused and not each.run.run_json.exists():
                _write_record(each.run, each.record)
            yield replace(each.action, kind="deferred", reason=reason)

    def _submit_group(self, group: Sequence[PreparedRun]) -> list[Action]:
        """Write the intents of a group, submit it, write the receipts. Raises `LimitReached`.

        After a kill between two of these steps, the tag in each intent identifies the jobs.
        """
        moved: list[tuple[Path, Path]] = []
        late = [each.action for each in group if not _revoke_former(each.action.state)]
        results = [replace(action, kind="in_progress", reason="started in the meantime") for action in late]
        settled = [
            _from_scratch(each, moved) if each.action.from_scratch else each
            for each in group
            if each.action not in late
        ]
        if not settled:
            return results
        batch = batch_of(settled, self.chains, self.dependencies)
        for each, submission in zip(settled, batch.submissions, strict=True):
            self._write_intent(each, submission, batch)
        try:
            job_ids = [self.current_job] if self.current_job else self.scheduler.submit(batch)
        except Unreachable as error:  # jobs may exist: the next command searches for them
            reason = f"whether it was submitted is not known: {error}"
            return results + [
                replace(each.action, kind="deferred", reason=reason, error=error) for each in settled
            ]
        except (SubmitError, ConfigError) as error:
            for folder, aside in moved:
                os.rename(aside, folder)
            for each, submission in zip(settled, batch.submissions, strict=True):
                journal.revoke(each.run, submission.number, "launch_failed", str(error))
            if isinstance(error, LimitReached):
                raise
            for each in settled:
                if each.action.state is None:
                    _remove_new_run(each.run)
            return results + [
                replace(each.action, kind="blocked", reason=str(error), error=error) for each in settled
            ]
        if self.chains is not None:
            self.chains.add(job_ids)
        for each, submission, job_id in zip(settled, batch.submissions, job_ids, strict=True):
            journal.write_receipt(each.run, submission.number, job_id)
            self.dependencies.add(each.run, job_id)
            results.append(replace(each.action, job_id=job_id))
        return results

    def _write_intent(self, prepared: PreparedRun, submission: Submission, batch: Batch) -> None:
        record, state = prepared.record, prepared.action.state
        packed: dict[str, Any] = {}
        if submission.place is not None:
            beside = [each for each in batch.submissions if each.index == submission.index]
            packed = {"place": submission.place, "packed": {each.run.name: each.number for each in beside}}
            record = {**record, "runs_per_job": len(beside)}
        _write_record(prepared.run, record)
        code_hash, command = run_code.hash_in(record), run_code.command_record(record)
        attempts = state.attempts if state else 0
        same_code = state is not None and state.code_hash == code_hash
        intent = {
            "cluster": self.scheduler.name,
            "cluster_name": self.scheduler.cluster_name(),
            "host": host(),
            "handle": None if self.current_job else submission.tag,
            "index": submission.index,
            **packed,
            "after": list(batch.after),
            **({"needs": dict(batch.needs)} if batch.needs else {}),
            "config_key": record["config_key"],
            "run_key": record["run_key"],
            "code_hash": code_hash,
            "source": None if command is None else command["source"] or "",
            **({"from_scratch": True} if prepared.action.from_scratch else {}),
            "attempts": attempts,
            "attempts_before_code": state.attempts_before_code if state and same_code else attempts,
        }
        number = journal.write_intent(prepared.run, intent)
        assert number == submission.number, "the caller holds the lock of the sweep"


def _revoke_former(state: RunState | None) -> bool:
    """Revoke the submission whose job was not found, or is not requeued yet; False if it has just started.

    A job with a revoked submission exits.
    """
    if state is None or state.submission is None:
        return True
    return journal.revoke(state.run, state.submission, "lost", "submitted again", starts=state.starts)


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
    return replace(prepared, action=replace(prepared.action, reason=reason))


def _remove_new_run(run: RunDir) -> None:
    """Remove the folder of a run whose only submission was refused. Other files in it stay."""
    for path in (*run.submissions.glob("*.json"), run.script, run.run_json):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        run.submissions.rmdir()
        run.path.rmdir()


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
    folder = (run_code.command_record(record) or {}).get("folder")
    return {**record, "provenance": [run_code.paths_in(record), folder]}
