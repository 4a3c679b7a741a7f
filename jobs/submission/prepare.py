"""Prepare runs for submission: the content of `run.json` and the site profile. Writes no run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.records import collect_provenance
from disttrain.records.json_files import CorruptFile
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json
from jobs.core import excluded_nodes, run_code
from jobs.core.code_copy import CommandReader
from jobs.schedulers.interface import Scheduler, SiteProfile
from jobs.submission.decide import Action


@dataclass(frozen=True)
class PreparedRun:
    """A run with the record and profile of its submission."""

    position: int
    """Index of its action."""
    action: Action
    run: RunDir
    record: Mapping[str, Any]
    """Content of `run.json`."""
    profile: SiteProfile | None


def prepare(
    actions: Iterable[Action],
    scheduler: Scheduler,
    root: Path,
    provenance: Mapping[str, Any],
    commands: CommandReader | None = None,
    *,
    skip_preflight: bool = False,
    has_job: bool = False,
) -> Iterator[PreparedRun | Action]:
    """Yield the prepared run of each action, or the action itself if nothing is submitted. Writes nothing.

    With `has_job`, the nodes are those of the job of this process, and none is excluded. Raises `ConfigError`
    where the exclusion list of the runs folder cannot be read.
    """
    commands = commands or CommandReader(Path(root))
    excluded = [] if has_job else nodes_to_exclude(Path(root), scheduler)
    for position, action in enumerate(actions):
        if not action.submits:
            yield action
            continue
        run = action.state.run if action.state else RunDir(Path(root) / action.sweep / action.name)
        if run.path.exists() and not os.access(run.path, os.W_OK):
            yield dataclasses.replace(action, kind="blocked", reason=f"no write access to {run.path}")
            continue
        try:
            record, profile = _run_record(action, run, scheduler, provenance, commands)
            record = _with_nodes(record, excluded, skip_preflight=skip_preflight)
            yield PreparedRun(position, action, run, record, profile)
        except (CorruptFile, OSError, KeyError) as error:
            reason = f"{run.run_json} cannot be used: {error}"
            yield dataclasses.replace(action, kind="blocked", reason=reason)


def nodes_to_exclude(root: Path, scheduler: Scheduler) -> list[str]:
    """Nodes on the exclusion list that submissions to this scheduler avoid. Raises `ConfigError`."""
    entries = [] if scheduler.one_machine else excluded_nodes.read(root)
    if not entries:
        return []
    found = excluded_nodes.on_cluster(entries, scheduler.cluster_name(), scheduler.node_names)
    return sorted({each.host for each in found})


def _with_nodes(
    record: Mapping[str, Any], excluded: Sequence[str], *, skip_preflight: bool
) -> dict[str, Any]:
    """The record with the nodes that the submission excludes, and without its pre-flight."""
    made = {name: value for name, value in record.items() if name != "excluded_nodes"}
    if excluded:
        made["excluded_nodes"] = list(excluded)
    if skip_preflight:
        config = made["config"]
        made["config"] = {**config, "job": {**config["job"], "preflight": "off"}}
    return made


def _run_record(
    action: Action,
    run: RunDir,
    scheduler: Scheduler,
    provenance: Mapping[str, Any],
    commands: CommandReader,
) -> tuple[dict[str, Any], SiteProfile | None]:
    """Content of `run.json` (`records.RunRecord`) and the site profile."""
    folder = Path.cwd()
    if action.plan is None:
        record = read_run_json(run)
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
        }
    profile = scheduler.profile(record.get("profile") if action.plan is None else None)
    record["cluster"] = scheduler.name
    record["profile"] = profile.as_dict() if profile else None
    outside = run_code.missing_modules(
        record["config"], run_code.code_of_run(run, {"provenance": provenance})
    )
    record["provenance"] = {**provenance, "code": {**provenance["code"], "not_covered": outside}}
    if command := record["config"].get("command"):
        record["provenance"]["command"] = commands.read(command, folder)
    if secrets := record["config"]["job"].get("secrets"):  # not in the records of older code
        record["provenance"] = collect_provenance.without_secrets(record["provenance"], secrets)
    record["run_key"] = collect_provenance.run_key(record["config_key"], run_code.hash_in(record))
    return record, profile
