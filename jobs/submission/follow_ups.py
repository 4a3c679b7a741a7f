"""Plan follow-ups: runs of a command that `job.on_done` and `job.on_checkpoint` of another run submit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from disttrain.config.config_tree import Config
from disttrain.config.run_key import hash_values, keyed_values
from disttrain.records.checkpoint import committed_path
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.core.attempt import checkpoint_folder
from jobs.core.follow_ups import DONE
from jobs.status.run_state import read_state
from jobs.submission.decide import Action
from sweeps.expand import RunPlan, SweepPlan


def with_done_runs(plan: SweepPlan, root: Path) -> SweepPlan:
    """The plan with the follow-up of each run that has `job.on_done`, after all other runs."""
    added = [
        _planned(run.config, run.config_key, RunDir(root / plan.name / run.name), run.config.job.on_done, {})
        for run in plan.runs
        if run.config.job.on_done
    ]
    return replace(plan, runs=(*plan.runs, *added)) if added else plan


def without_blocked(actions: Sequence[Action], root: Path) -> list[Action]:
    """The actions, in which a follow-up of `job.on_done` is blocked if its run is, or starts no more."""
    kinds = {each.name: each.kind for each in actions}

    def obstacle(action: Action) -> str | None:
        parent = action.done_before
        if not action.submits or parent is None:
            return None
        if parent in kinds:
            return f"{parent} is blocked" if kinds[parent] == "blocked" else None
        state = read_state(RunDir(root / action.sweep / parent))
        if state.active or state.state == "done":
            return None
        return f"{parent} is {state.displayed_state}: resume {action.sweep}/{parent}, which this run follows"

    obstacles = [(each, obstacle(each)) for each in actions]
    return [replace(each, kind="blocked", reason=why) if why else each for each, why in obstacles]


def checkpoint_plan(config: Config, config_key: str, run: RunDir, step: int) -> RunPlan:
    """The follow-up of a checkpoint of a run; another one where the run has begun anew since then."""
    path = committed_path(checkpoint_folder(run, config.as_dict()), step)
    values = {"checkpoint": str(path.absolute()), "step": str(step)}
    plan = _planned(config, config_key, run, config.job.on_checkpoint, values)
    intents = (entry.read("intent") or {} for entry in journal.entries(run))
    anew = sum(bool(intent.get("from_scratch")) for intent in intents)
    if not anew:
        return plan
    return replace(
        plan, name=f"{plan.name}-{anew + 1}", config_key=hash_values({"plan": plan.config_key, "anew": anew})
    )


def _planned(
    config: Config, config_key: str, run: RunDir, command: tuple[str, ...], values: Mapping[str, str]
) -> RunPlan:
    """A run of the command on one node. `values` are those of placeholders, besides those of the run."""
    folder = checkpoint_folder(run, config.as_dict()).absolute()
    texts = {"run": run.name, "run_dir": str(run.path.absolute()), "checkpoint_dir": str(folder), **values}
    words = [re.sub(r"\{(\w+)\}", lambda match: texts.get(match[1], match[0]), word) for word in command]
    job = config.job.model_dump(mode="json")
    job |= {"on_done": (), "on_checkpoint": (), "time_limit_min": job["follow_up_limit_min"]}
    shape = {"nodes": 1, "gpus_per_node": config.job.follow_up_gpus, "runs_per_node": 1, "share_gpus": False}
    resources = config.resources.model_dump(mode="json") | shape
    made = Config.model_validate({"command": words, "resources": resources, "job": job})
    key = hash_values({**keyed_values(made), "follows": config_key})
    suffix = f".{Path(values['checkpoint']).name}" if values else DONE
    return RunPlan(run.name + suffix, made, key, 0, {}, None, follows=run.name)
