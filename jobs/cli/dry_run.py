"""`--dry-run` and `--test-only`: compute and print the actions of a submission without writing anything."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.config.auto_strategy import planned_strategy
from disttrain.config.ranks import ranks_per_node
from disttrain.records import run_placeholders
from disttrain.records.collect_provenance import run_key
from disttrain.records.run_directory import RunDir
from jobs.cli.action_table import EXIT_RUNS_MISSING
from jobs.cli.command_output import add_json, print_error, print_warning
from jobs.cli.cost_bound import cost_bound
from jobs.cli.dry_run_text import PORT, dry_run_text, script_json
from jobs.cli.formatting import count
from jobs.cli.progress_bar import progress
from jobs.cli.submitting import limit_line
from jobs.cli.target import described_scheduler
from jobs.core import code_copy, environment, run_code
from jobs.core.code_copy import CommandReader
from jobs.node.launch import launch_command
from jobs.node.rendezvous import Endpoint
from jobs.schedulers.interface import Scheduler
from jobs.status.run_state import RunState
from jobs.submission.decide import Action
from jobs.submission.memory_estimates import estimate_memory
from jobs.submission.pipeline import Plan, preview
from jobs.submission.start_from_check import check_start_from
from sweeps.expand import RunPlan

INTERFACE = "INTERFACE"
"""Placeholder of a node's network interface, which is determined when the run starts."""


@dataclass(frozen=True)
class _Place:
    """Values that all runs of a submission share."""

    scheduler: Scheduler
    root: Path
    code_hash: str
    snapshot: Path
    """Path of the code copy that would run."""
    inherited: Mapping[str, str]
    """Variables of the shell that jobs inherit."""
    profile: Mapping[str, Any] | None
    commands: CommandReader

    @classmethod
    def of(cls, scheduler: Scheduler, root: Path, code: Mapping[str, Any]) -> _Place:
        profile = scheduler.profile(None)
        return cls(
            scheduler,
            root,
            code["hash"],
            root / code["path"],
            scheduler.submission_environment(os.environ),
            profile.as_dict() if profile else None,
            CommandReader(root),
        )


def print_dry_run(args: argparse.Namespace, plan: Plan, existing: Sequence[RunState]) -> int:
    """Print the actions on a plan, and return the exit code: 1 if a script is refused."""
    expanded = plan.expanded
    assert expanded is not None
    scheduler = described_scheduler(args, existing)
    check_start_from(expanded.runs, {state.config_key for state in existing}, plan.root, scheduler)
    code = code_copy.read_code().record()
    actions, batches = preview(plan, scheduler, existing, code, progress)
    place = _Place.of(scheduler, plan.root.absolute(), code)
    every = args.json or args.all_scripts
    runs = [
        _run_json(action, plan.sweep, place, commands=every or number == 0)
        for number, action in enumerate(progress(actions, "planning runs"))
    ]
    if args.memory:
        plans = [action.plan for action in actions if action.plan is not None]
        for entry, estimate in zip(runs, estimate_memory(plans), strict=True):
            entry["memory"] = estimate
    shown = progress(batches, "testing scripts" if args.test_only else "rendering scripts")
    scripts = list(scheduler.previews(shown, test=args.test_only, complete=every))
    warnings = plan.warnings(actions, scheduler)
    if args.json:
        for line in warnings:
            print_warning(line)
        add_json(
            [_existing_or_planned(action, plan.root) for action in actions],
            sweep=plan.sweep,
            scaling=expanded.scaling,
            base_ranks=expanded.base_ranks,
            cluster=scheduler.name,
            plans=runs,
            batches=[script_json(script, scheduler) for script in scripts],
        )
    else:
        notes = [f"warning: {line}" for line in warnings] + limit_line(plan, scheduler)
        report_job = not (args.wait or args.no_report) and any(action.submits for action in actions)
        print(
            dry_run_text(
                expanded, scheduler, plan.root, runs, notes, scripts, report_job=report_job, every=every
            )
        )
    refused = [script.name for script in scripts if script.check and not script.check.accepted]
    if refused:
        print_error(f"{scheduler.title} refuses {len(refused)} of {count(len(scripts), 'batch script')}")
    return EXIT_RUNS_MISSING if refused else 0


def _existing_or_planned(action: Action, root: Path) -> RunState:
    if action.state is not None:
        return action.state
    key = action.plan.config_key if action.plan else None
    return RunState(RunDir(root / action.sweep / action.name), "planned", config_key=key)


def _run_json(action: Action, sweep: str, place: _Place, *, commands: bool) -> dict[str, Any]:
    """One run in the output of `--json`; without `commands` its commands are left out."""
    planned = action.plan
    assert planned is not None
    config = planned.config.as_dict()
    run = RunDir(place.root / sweep / action.name)
    nodes = planned.config.resources.nodes
    bound = cost_bound(planned, place.scheduler)
    command = planned.config.command
    about = place.commands.read(command, Path.cwd()) if command else None
    attempt = action.state.attempts if action.state else 0
    of_run = run_placeholders.fill(config, run, attempt)
    record = {
        "config": of_run,
        "run_key": run_key(planned.config_key, about["hash"] or "" if about else place.code_hash),
        "provenance": {"command": about},
    }
    added = _added_variables(planned, of_run, place, run, record)
    commands = commands and place.scheduler.one_machine
    return {
        "sweep": action.sweep,
        "run": action.name,
        "action": action.kind,
        "reason": action.reason,
        "nodes": nodes,
        "ranks_per_node": ranks_per_node(config),
        "batch": _batch_sizes(planned),
        "steps": planned.config.train.steps,
        "epochs": planned.config.train.epochs,
        "strategy": None if command else planned_strategy(planned.config),
        "time_limit_min": planned.config.job.time_limit_min,
        "cost_bound": {"hours": bound.hours, "unit": bound.unit},
        "config_key": planned.config_key,
        "config": config,
        "env": environment.env_record(added)["variables"],
        "commands": _node_commands(run, action, record) if commands else [],
    }


def _batch_sizes(planned: RunPlan) -> dict[str, int | str | None] | None:
    """Batch sizes of a run; those that the ranks find themselves are `auto` and null."""
    config, batch = planned.config, planned.batch
    if config.command:
        return None
    if batch is None:
        readers = config.world_size // config.stages
        global_ = config.train.global_batch_size
        return {"local": "auto", "accumulation": None, "ranks": readers, "global": global_}
    return {
        "local": batch.local,
        "accumulation": batch.accumulation,
        "ranks": batch.world,
        "global": batch.global_,
    }


def _added_variables(
    planned: RunPlan,
    config: Mapping[str, Any],
    place: _Place,
    run: RunDir,
    record: Mapping[str, Any],
) -> dict[str, environment.AddedVariable]:
    """Variables that the agents would add."""
    command = run_code.command_of_run(run, record)
    of_command = environment.command_variables(run, run.attempt(0), config) if command else {}
    return of_command | environment.added_variables(
        config,
        place.inherited,
        code=place.snapshot,
        source=str(run_code.CODE_ROOT),
        fabric=_of_nodes(place) if planned.config.resources.nodes > 1 else None,
        one_machine=place.scheduler.one_machine,
        profile=place.profile,
        search_path=command.search_path(place.inherited.get("PYTHONPATH", "")) if command else None,
    )


def _of_nodes(place: _Place) -> dict[str, environment.AddedVariable]:
    """The variable that each node derives of any network, unless the shell sets it."""
    reason = "the interface by which this node reaches the others by name"
    derived = environment.AddedVariable(INTERFACE, reason, "derived")
    return {} if "GLOO_SOCKET_IFNAME" in place.inherited else {"GLOO_SOCKET_IFNAME": derived}


def _node_commands(run: RunDir, action: Action, record: Mapping[str, Any]) -> list[list[str]]:
    """torchrun command of each node, for a scheduler without batch scripts."""
    assert action.plan is not None
    attempt = run.attempt(action.state.attempts if action.state else 0)
    nodes, endpoint = action.plan.config.resources.nodes, Endpoint("127.0.0.1", 0)
    return [_with_port(launch_command(run, attempt, record, node, nodes, endpoint)) for node in range(nodes)]


def _with_port(command: list[str]) -> list[str]:
    index = command.index("--master-port") + 1
    return [*command[:index], PORT, *command[index + 1 :]]
