"""`--dry-run`: what would be done, in full, with nothing written."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.records.collect_provenance import run_key
from disttrain.records.masking import mask_config
from disttrain.records.run_directory import RunDir
from jobs.cli import batch_scripts
from jobs.cli.formatting import count, plain, table
from jobs.cli.json_output import print_json
from jobs.cli.submitting import EXIT_FAILED
from jobs.cli.target import described_scheduler
from jobs.core import code_snapshot, environment
from jobs.node.agent import launch_command
from jobs.node.rendezvous import Endpoint
from jobs.schedulers.base import Scheduler, ScriptPreview
from jobs.status.run_state import read_runs
from jobs.submission.actions import Action, plan_actions
from jobs.submission.warnings import warnings_for
from sweeps.expand import RunPlan, SweepPlan
from sweeps.run_names import strategy_of

PORT, INTERFACE = "PORT", "INTERFACE"
"""Placeholders of values known at the start alone: the port, and a node's interface to the others."""
_HEAD = (
    "RUN",
    "WHAT",
    "NODES x RANKS",
    "LOCAL x ACCUM x RANKS = GLOBAL",
    "LENGTH",
    "STRATEGY",
    "LIMIT",
    "COST",
)
_REPORT_JOB = "when they have ended, a small job would write the report (--no-report leaves it out)"


@dataclass(frozen=True)
class Cost:
    """An upper bound of what one attempt may use."""

    hours: float
    unit: str
    """`GPU-hours`, or `CPU rank-hours` where ranks have no GPU."""

    def __str__(self) -> str:
        return f"<= {self.hours:.3g} {self.unit}"


def describe(args: argparse.Namespace, plan: SweepPlan) -> int:
    """Print what `plan` comes to."""
    there = read_runs(args.runs, plan.name)
    scheduler = described_scheduler(args, there)
    code = code_snapshot.read_code()
    actions = plan_actions(plan, there, code.code_hash)
    described = [_run(action, plan, scheduler, args.runs, code) for action in actions]
    record = code_snapshot.code_record(code)
    scripts = batch_scripts.previews(actions, scheduler, args.runs, record, test=args.test_only)
    warnings = warnings_for([action.plan for action in actions if action.submits and action.plan], scheduler)
    if args.json:
        print_json(
            {
                "sweep": plan.name,
                "scaling": plan.scaling,
                "base_ranks": plan.base_ranks,
                "cluster": scheduler.name,
                "warnings": warnings,
                "runs": described,
                "batches": [batch_scripts.as_json(script, scheduler) for script in scripts],
            }
        )
    else:
        reports = not (args.wait or args.no_report) and any(action.submits for action in actions)
        print(as_text(plan, scheduler, args.runs, described, warnings, scripts, reports=reports))
    return EXIT_FAILED if any(script.check and not script.check.accepted for script in scripts) else 0


def _run(
    action: Action, plan: SweepPlan, scheduler: Scheduler, root: Path, code: code_snapshot.CodeContent
) -> dict[str, Any]:
    """One run as `--json` shows it."""
    wanted = action.plan
    assert wanted is not None
    config, _ = mask_config(wanted.config.as_dict())
    run = RunDir(root.absolute() / plan.name / action.name)
    nodes = wanted.config.resources.nodes
    bound = cost(wanted, scheduler)
    added = _added(wanted, config, scheduler, code_snapshot.snapshot_path(root.absolute(), code))
    return {
        "run": action.name,
        "action": action.kind,
        "reason": action.reason,
        "nodes": nodes,
        "ranks_per_node": wanted.config.resources.gpus_per_node,
        "batch": {
            "local": wanted.batch.local,
            "accumulation": wanted.batch.accumulation,
            "ranks": wanted.batch.world,
            "global": wanted.batch.global_,
        },
        "steps": wanted.config.train.steps,
        "epochs": wanted.config.train.epochs,
        "strategy": strategy_of(wanted.config),
        "time_limit_min": wanted.config.job.time_limit_min,
        "cost_bound": {"hours": bound.hours, "unit": bound.unit},
        "config_key": wanted.config_key,
        "config": config,
        "env": environment.env_record(added)["variables"],
        "commands": _node_commands(run, action, config, code.code_hash) if scheduler.one_machine else [],
    }


def _added(
    wanted: RunPlan, config: Mapping[str, Any], scheduler: Scheduler, copy: Path
) -> dict[str, environment.AddedVariable]:
    """What the agents would add; `copy` is the copy of the code that would run."""
    inherited = scheduler.submission_environment(os.environ)
    profile = scheduler.profile(None)
    return environment.added_variables(
        config,
        {**inherited, **wanted.config.job.env},
        code=copy,
        source=str(code_snapshot.CODE_ROOT),
        interface=INTERFACE if wanted.config.resources.nodes > 1 else None,
        one_machine=scheduler.one_machine,
        profile=profile.as_dict() if profile else None,
    )


def _node_commands(run: RunDir, action: Action, config: Mapping[str, Any], code: str) -> list[list[str]]:
    """The torchrun command of each node, where no batch script has it."""
    assert action.plan is not None
    attempt = run.attempt(action.state.attempts if action.state else 0)
    record = {"config": config, "run_key": run_key(action.plan.config_key, code)}
    nodes, meeting = action.plan.config.resources.nodes, Endpoint("127.0.0.1", 0)
    return [_with_port(launch_command(run, attempt, record, node, nodes, meeting)) for node in range(nodes)]


def _with_port(command: list[str]) -> list[str]:
    place = command.index("--master-port") + 1
    return [*command[:place], PORT, *command[place + 1 :]]


def cost(run: RunPlan, scheduler: Scheduler) -> Cost:
    """The time limit of one attempt times its ranks."""
    resources = run.config.resources
    on_gpu = scheduler.uses_gpus(resources.device, run.config.world_size)
    hours = run.config.world_size * run.config.job.time_limit_min / 60
    return Cost(hours, "GPU-hours" if on_gpu else "CPU rank-hours")


def as_text(
    plan: SweepPlan,
    scheduler: Scheduler,
    root: Path,
    runs: list[dict[str, Any]],
    warnings: list[str],
    scripts: list[ScriptPreview],
    *,
    reports: bool,
) -> str:
    """The whole description for a reader; `reports`: whether a job would write the report."""
    head = f"sweep {plan.name}: {count(len(runs), 'run')} on {scheduler.name} in {root / plan.name}; "
    if plan.base_ranks is None:
        head += "batch sizes as given"
    else:
        held = "train.local_batch_size" if plan.scaling == "weak" else "train.global_batch_size"
        head += f"{plan.scaling} scaling holds {held}, given for {count(plan.base_ranks, 'rank')}"
    parts = [
        head,
        table(_HEAD, [_row(run) for run in runs]),
        "\n".join([_total(runs), *(f"warning: {line}" for line in warnings)]),
        _environments(runs),
        _commands(runs) if scheduler.one_machine else batch_scripts.as_text(scripts, scheduler),
        _REPORT_JOB if reports else "",
    ]
    parts = [part for part in parts if part]
    return "\n\n".join([*parts, "dry run: nothing was written or submitted"])


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    batch, action = run["batch"], run["action"].replace("_", " ")
    length = count(run["steps"], "step") if run["steps"] else f"{plain(run['epochs'])} epochs"
    return (
        run["run"],
        action if action == run["reason"] else f"{action}: {run['reason']}",
        f"{run['nodes']} x {run['ranks_per_node']}",
        f"{batch['local']} x {batch['accumulation']} x {batch['ranks']} = {batch['global']}",
        length,
        run["strategy"],
        f"{plain(run['time_limit_min'])} min",
        str(Cost(**run["cost_bound"])),
    )


def _total(runs: list[dict[str, Any]]) -> str:
    starting = [run for run in runs if run["action"] in ("submit", "retry")]
    hours: dict[str, float] = {}
    for run in starting:
        bound = run["cost_bound"]
        hours[bound["unit"]] = hours.get(bound["unit"], 0.0) + bound["hours"]
    bounds = " and ".join(f"{sum_h:.3g} {unit}" for unit, sum_h in hours.items())
    cost_text = f", at most {bounds} (each attempt until its time limit)" if bounds else ""
    return f"would start {len(starting)} of {len(runs)}{cost_text}"


def _environments(runs: list[dict[str, Any]]) -> str:
    """What is added to the environment: once where all runs share it."""
    groups: dict[str, list[str]] = {}
    for run in runs:
        rows = [
            (f"  {name}={each['value']}", each["reason"], f"({each['source']})")
            for name, each in run["env"].items()
        ]
        lines = table(("", "", ""), rows).splitlines()[1:]
        groups.setdefault("\n".join(lines), []).append(run["run"])
    return "\n\n".join(
        f"added to the environment of {'every rank' if len(groups) == 1 else ', '.join(names)}:\n{lines}"
        for lines, names in groups.items()
    )


def _commands(runs: list[dict[str, Any]]) -> str:
    lines = [f"commands of each node ({PORT} is chosen when the run starts):"]
    for run in runs:
        lines.append(f"  {run['run']}")
        lines += [f"    node {node}: {' '.join(command)}" for node, command in enumerate(run["commands"])]
    return "\n".join(lines)
