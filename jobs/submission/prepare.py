"""Prepare runs for submission: `run.json`, the site profile, and the batches. Writes no run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from disttrain.records import collect_provenance
from disttrain.records.json_files import CorruptFile, read_json
from disttrain.records.run_directory import RunDir
from jobs.core import excluded_nodes, journal, run_code
from jobs.core.code_copy import CommandReader
from jobs.schedulers.interface import Batch, Scheduler, SiteProfile, Submission, submission_tag
from jobs.submission.decide import Action, JobChains
from jobs.submission.dependencies import NO_DEPENDENCIES, Dependencies


@dataclass(frozen=True)
class PreparedRun:
    """A run with the record and profile of its submission."""

    action: Action
    run: RunDir
    record: Mapping[str, Any]
    """Content of `run.json`."""
    profile: SiteProfile | None
    runs_per_job: int = 1
    """Largest number of runs that may share its job."""


def prepare(
    actions: Iterable[Action],
    scheduler: Scheduler,
    root: Path,
    provenance: Mapping[str, Any],
    commands: CommandReader,
    *,
    skip_preflight: bool = False,
    excluding: bool = True,
) -> Iterator[PreparedRun | Action]:
    """Yield the prepared run of each action, or the action itself if nothing is submitted. Writes nothing.

    Without `excluding`, no node is excluded: the run takes the job of this process. Raises `ConfigError`
    where the exclusion list of the runs folder cannot be read.
    """
    excluded = nodes_to_exclude(root, scheduler) if excluding else []
    for action in actions:
        if not action.submits:
            yield action
            continue
        run = action.state.run if action.state else RunDir(root / action.sweep / action.name)
        if run.path.exists() and not os.access(run.path, os.W_OK):
            yield replace(action, kind="blocked", reason=f"no write access to {run.path}")
            continue
        try:
            record, profile = _run_record(action, run, scheduler, provenance, commands)
        except (CorruptFile, OSError, KeyError) as error:
            yield replace(action, kind="blocked", reason=f"{run.run_json} cannot be used: {error}")
            continue
        for name in ("excluded_nodes", "runs_per_job"):
            record.pop(name, None)
        if excluded:
            record["excluded_nodes"] = excluded
        if skip_preflight:
            config = record["config"]
            record["config"] = {**config, "job": {**config["job"], "preflight": "off"}}
        packed = record["config"]["resources"].get("runs_per_node", 1) if excluding and scheduler.packs else 1
        yield PreparedRun(action, run, record, profile, packed)


def nodes_to_exclude(root: Path, scheduler: Scheduler) -> list[str]:
    """Nodes on the exclusion list that submissions to this scheduler avoid. Raises `ConfigError`."""
    entries = [] if scheduler.one_machine else excluded_nodes.read(root)
    if not entries:
        return []
    found = excluded_nodes.on_cluster(entries, scheduler.cluster_name(), scheduler.node_names)
    return sorted({each.host for each in found})


def _run_record(
    action: Action,
    run: RunDir,
    scheduler: Scheduler,
    provenance: Mapping[str, Any],
    commands: CommandReader,
) -> tuple[dict[str, Any], SiteProfile | None]:
    """Content of `run.json` (`records.RunRecord`) and the site profile."""
    folder, recorded = Path.cwd(), action.profile
    if action.plan is None:
        record = read_json(run.run_json)
        recorded = record.get("profile")
        if (former := run_code.command_record(record)) is not None:
            folder = Path(former["folder"])
    else:
        record = {
            "schema_version": 1,
            "name": run.name,
            "sweep": run.sweep,
            "config_key": action.plan.config_key,
            "repeat": action.plan.repeat,
            "config": action.plan.config.as_dict(),
            "axes": action.plan.axes,
            "follows": action.plan.follows,
        }
    profile, config = scheduler.profile(recorded), record["config"]
    record["cluster"] = scheduler.name
    record["profile"] = profile.as_dict() if profile else None
    copy = run_code.code_of_run(run, {"provenance": provenance})
    outside = run_code.missing_modules(config, copy)
    record["provenance"] = {**provenance, "code": {**provenance["code"], "not_covered": outside}}
    if command := config.get("command"):
        record["provenance"]["command"] = commands.read(command, folder)
    if secrets := config["job"].get("secrets"):
        record["provenance"] = collect_provenance.without_secrets(record["provenance"], secrets)
    record["run_key"] = collect_provenance.run_key(record["config_key"], run_code.hash_in(record))
    return record, profile


def submission_groups(
    prepared: Sequence[PreparedRun],
    scheduler: Scheduler,
    most: int,
    chains: JobChains | None = None,
    dependencies: Dependencies = NO_DEPENDENCIES,
) -> list[list[PreparedRun]]:
    """The runs of each job, or of each array of at most `most` jobs, in the order of submission.

    Runs share an array or a job if their batch scripts differ only in the run. With `chains`, they do so only
    if there is no other job: the limit of an array holds for this array alone. Runs that others wait for come
    first. All jobs of a group have the same number of runs.
    """
    if dependencies.first or dependencies.parents:
        prepared = sorted(prepared, key=lambda each: dependencies.rank(each.run))  # stable
        most = 1 if chains else most
    single = [[each] for each in prepared]
    if not prepared or most * max(each.runs_per_job for each in prepared) == 1:
        return single
    groups: list[list[PreparedRun]] = []
    newest: dict[str, list[PreparedRun]] = {}
    for each in prepared:
        key = scheduler.batch_key(each.run, each.record, each.profile) + dependencies.group(each.run)
        if key not in newest or len(newest[key]) == most * each.runs_per_job:
            groups.append([])
            newest[key] = groups[-1]
        newest[key].append(each)
    whole = [(group, len(group) - len(group) % group[0].runs_per_job) for group in groups]
    groups = [part for group, end in whole for part in (group[:end], group[end:]) if part]
    return groups if chains is None or (len(groups) == 1 and chains.empty) else single


def batch_of(
    group: Sequence[PreparedRun],
    chains: JobChains | None = None,
    dependencies: Dependencies = NO_DEPENDENCIES,
) -> Batch:
    """The batch of these runs, with their next submission numbers and the jobs that it waits for."""
    first, runs_per_job = group[0], min(group[0].runs_per_job, len(group))
    is_array, is_packed = len(group) > runs_per_job, runs_per_job > 1
    numbers = [journal.next_submission(each.run) for each in group]
    tag = submission_tag(first.run, numbers[0])
    submissions = [
        Submission(
            each.run,
            number,
            tag,
            at // runs_per_job if is_array else None,
            at % runs_per_job if is_packed else None,
        )
        for at, (each, number) in enumerate(zip(group, numbers, strict=True))
    ]
    needs, ended = dependencies.of(first.run)
    after, at_once = (chains.before(len(group)), chains.limit) if chains else ((), None)
    return Batch(submissions, first.record, first.profile, (*ended, *after), needs, at_once, runs_per_job)
