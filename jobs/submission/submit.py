"""Doing what `jobs.submission.actions` decided: runs are planned, announced, submitted and their jobs noted.

Each step is journaled (see `jobs.core.journal`), so a submitter may be killed anywhere and the same command given
again. Belongs inside `sweep_lock`, with reading the states.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError
from disttrain.records import collect_provenance
from disttrain.records.json_files import (
    CorruptFile,
    create_exclusive,
    read_json_or_none,
    write_json,
)
from disttrain.records.masking import mask_config
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json
from jobs.core import code_snapshot, journal
from jobs.core.processes import child_environment, host
from jobs.schedulers.base import LimitReached, Scheduler, Submission, SubmitError, SubmitQuota, Unreachable
from jobs.submission.actions import Action


@dataclass(frozen=True)
class Wanted:
    """A run that is to be submitted."""

    place: int
    """Of its action among all."""
    action: Action
    run: RunDir
    record: Mapping[str, Any]
    """Content of `run.json`."""
    secrets: Mapping[str, str]

    def may_join(self, other: Wanted) -> bool:
        """Whether one batch script serves both: repeats of one run."""
        names = ("config", "profile", "provenance")
        same = all(self.record.get(name) == other.record.get(name) for name in names)
        return same and self.secrets == other.secrets


def carry_out(
    actions: Sequence[Action], cluster: Scheduler, root: Path, *, taken: str = "submission"
) -> list[Action]:
    """Submit what is to be submitted; the actions with their job ids.

    Runs lie in `root/<sweep>/<run>`. A run that turns out to have started after all becomes a `wait`, one
    whose `run.json` cannot be read a `give up`, one that the cluster has no room for now a `left`.
    `taken` says when the code is copied (`records.Code`). Raises `SubmitError` at the first job the cluster
    refuses.
    """
    if not any(action.submits for action in actions):
        return list(actions)
    with code_snapshot.hold_snapshots(Path(root)):
        made = collect_provenance.collect()
        made["code"] = {**made["code"], **code_snapshot.take_snapshot(Path(root)), "taken": taken}
        return _carry_out(actions, cluster, root, made)


def _carry_out(
    actions: Sequence[Action], cluster: Scheduler, root: Path, made: Mapping[str, Any]
) -> list[Action]:
    results = list(actions)
    wanted = []
    for place, found in enumerate(prepare(actions, cluster, root, made)):
        if isinstance(found, Wanted):
            wanted.append(found)
        else:
            results[place] = found
    if wanted:
        for place, result in _submit_all(wanted, cluster):
            results[place] = result
    return results


def prepare(
    actions: Sequence[Action], cluster: Scheduler, root: Path, made: Mapping[str, Any]
) -> Iterator[Wanted | Action]:
    """For each action the run that is to be submitted, or what is left of the action. Writes nothing.

    `made` is the provenance that runs get.
    """
    for place, action in enumerate(actions):
        if not action.submits:
            yield action
            continue
        run = action.state.run if action.state else RunDir(Path(root) / action.sweep / action.name)
        try:
            yield Wanted(place, action, run, *_record(action, run, cluster, made))
        except (CorruptFile, OSError, KeyError) as error:
            reason = f"{run.run_json} cannot be used: {error}"
            yield dataclasses.replace(action, kind="blocked", reason=reason)


def _submit_all(wanted: Sequence[Wanted], cluster: Scheduler) -> Iterator[tuple[int, Action]]:
    room = cluster.room(wanted[0].record.get("profile"))  # one for all: a sweep has one profile
    todo = deque(batches(wanted, room.array))
    left = room.jobs
    while todo:
        batch = todo.popleft()
        if left is not None and left < len(batch):
            todo.appendleft(batch[left:])
            batch = batch[:left]
        if not batch:
            break
        try:
            done = _submit(batch, cluster)
        except LimitReached as error:  # one that could not be known before
            room, left = SubmitQuota(why=str(error)), len(batch) // 2
            todo.appendleft(batch)
            continue
        left = None if left is None else left - len(batch)
        yield from done
    for each in (each for batch in todo for each in batch):
        if not each.run.run_json.exists():
            _write_record(each.run, each.record)
        yield each.place, dataclasses.replace(each.action, kind="deferred", reason=f"{room.why} is reached")


def batches(wanted: Sequence[Wanted], most: int) -> list[list[Wanted]]:
    """The runs as they are submitted together, `most` at a time, ordered by the first of each batch."""
    found: list[list[Wanted]] = []
    for each in wanted:
        joined = next((batch for batch in found if len(batch) < most and each.may_join(batch[0])), None)
        if joined is None:
            found.append([each])
        else:
            joined.append(each)
    return found


def _submit(batch: Sequence[Wanted], cluster: Scheduler) -> list[tuple[int, Action]]:
    """Announce all runs of a batch, submit it, note all of its jobs: killed anywhere between, the handle in
    each announcement finds what there is."""
    results = []
    settled = []
    for each in batch:
        state = each.action.state
        if state is not None and state.submission is not None:
            # A job that was not found, or one that Slurm requeues yet, starts nothing any more.
            message = "submitted again"
            if not journal.revoke(each.run, state.submission, "lost", message, starts=state.starts):
                late = dataclasses.replace(each.action, kind="in_progress", reason="started in the meantime")
                results.append((each.place, late))
                continue
        settled.append(each)
    if not settled:
        return results
    first = settled[0]
    comment = handle(first.run, journal.next_submission(first.run))
    announced = [
        _announce(each, cluster, comment, index if len(settled) > 1 else None)
        for index, each in enumerate(settled)
    ]
    try:
        with child_environment(first.secrets):  # so they travel without being written down
            job_ids = cluster.submit(announced)
    except Unreachable:
        raise  # there may be jobs: the next command asks again
    except (SubmitError, ConfigError) as error:
        for submission in announced:
            journal.revoke(submission.run, submission.number, "launch_failed", str(error))
        raise
    for each, submission, job_id in zip(settled, announced, job_ids, strict=True):
        journal.write_receipt(submission.run, submission.number, job_id)
        results.append((each.place, dataclasses.replace(each.action, job_id=job_id)))
    return results


def handle(run: RunDir, number: int) -> str:
    """By which a batch is found on a cluster: its first submission, and the folder, as there may be many of
    that name."""
    folder = hashlib.sha256(str(run.path.absolute()).encode()).hexdigest()[:12]
    return f"disttrain:{run.sweep}/{run.name}:{number}:{folder}"


def batch_name(names: Sequence[str]) -> str:
    """What a batch of these runs is called: for repeats of one run its name, less their number."""
    return names[0] if len(names) == 1 else re.sub(r"-r\d+$", "", names[0])


def _announce(wanted: Wanted, cluster: Scheduler, comment: str, index: int | None) -> Submission:
    _write_record(wanted.run, wanted.record)
    code_hash = wanted.record["provenance"]["code"]["hash"]
    state = wanted.action.state
    attempts = state.attempts if state else 0
    same_code = state is not None and state.code_hash == code_hash
    intent = {
        "cluster": cluster.name,
        "host": host(),
        "handle": comment,
        "index": index,
        "config_key": wanted.record["config_key"],
        "run_key": wanted.record["run_key"],
        "code_hash": code_hash,
        "attempts": attempts,
        "attempts_before_code": state.attempts_before_code if state and same_code else attempts,
    }
    return Submission(wanted.run, journal.write_intent(wanted.run, intent))


def _record(
    action: Action, run: RunDir, cluster: Scheduler, made: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Content of `run.json` (`records.RunRecord`), and the secrets left out of it."""
    if action.plan is None:
        record = read_run_json(run)
        secrets: dict[str, str] = {}
    else:
        config, secrets = mask_config(action.plan.config.as_dict())
        record = {
            "schema_version": 1,
            "name": run.name,
            "sweep": run.sweep,
            "config_key": action.plan.config_key,
            "repeat": action.plan.repeat,
            "config": config,
            "axes": action.plan.axes,
        }
    record["run_key"] = collect_provenance.run_key(record["config_key"], made["code"]["hash"])
    record["cluster"] = cluster.name
    record["profile"] = cluster.profile(record.get("profile") if action.plan is None else None)
    outside = code_snapshot.missing_modules(
        record["config"], code_snapshot.code_of_run(run, {"provenance": made})
    )
    record["provenance"] = {**made, "code": {**made["code"], "not_covered": outside}}
    return record, secrets


def _write_record(run: RunDir, record: Mapping[str, Any]) -> None:
    """Write `run.json`, or leave it if it says this already: it then keeps the provenance of its first plan.

    Where it changes (other code or another copy of it, another cluster, a raised limit), the last attempt
    keeps the former one.
    """
    former = read_json_or_none(run.run_json)
    if former is not None:
        if _what_counts(former) == _what_counts(record):
            return
        attempts = run.attempts()
        if attempts:  # fails where it is there already: then no attempt was made with the former one
            create_exclusive(attempts[-1].path / "run.json", former)
    write_json(run.run_json, record)


def _what_counts(record: Mapping[str, Any]) -> dict[str, Any]:
    """All but the provenance, and of that where the code is: jobs run what is there."""
    code = (record.get("provenance") or {}).get("code") or {}
    return {**record, "provenance": code.get("path")}
