"""`--dry-run`, `--test-only` and `--memory`: print what a submission would do, and write nothing."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.config.auto_strategy import planned_strategy
from disttrain.records.collect_provenance import run_key
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import fill, ranks_per_node
from jobs.cli.command_output import add_json, print_error, print_warning
from jobs.cli.formatting import count, plain, size, some_of, table
from jobs.cli.progress_bar import progress
from jobs.cli.report import missing
from jobs.cli.submitting import DRY_RUN, EXIT_RUNS_MISSING, cost_bound, limit_lines, total_cost
from jobs.core import code_copy, environment, run_code
from jobs.node.launch import launch_command
from jobs.node.rendezvous import Endpoint
from jobs.schedulers.interface import Scheduler, ScriptPreview
from jobs.status.run_state import RunState
from jobs.submission.before import estimate_memory
from jobs.submission.decide import Action
from jobs.submission.pipeline import Plan, preview
from sweeps.expand import RunPlan, SweepPlan

INTERFACE, PORT = "INTERFACE", "PORT"
"""Placeholders of a node's network interface and of torchrun's port, which a run finds when it starts."""


def print_dry_run(
    args: argparse.Namespace, plan: Plan, existing: Sequence[RunState], scheduler: Scheduler
) -> int:
    """Print the actions on a plan, and return the exit code: 1 if a script is refused."""
    assert plan.expanded is not None
    configs = [run.config.model_dump(mode="json") for run in plan.expanded.runs]
    code = code_copy.with_project(code_copy.read_code(), configs, plan.root).record()
    actions, batches = preview(plan, scheduler, existing, code, progress)
    every = args.json or args.all_scripts
    runs = list(_plans(progress(actions, "planning runs"), plan, scheduler, code, every=every))
    if args.memory:
        plans = [action.plan for action in actions if action.plan is not None]
        for entry, estimate in zip(runs, estimate_memory(plans), strict=True):
            entry["memory"] = estimate
    shown = progress(batches, "testing scripts" if args.test_only else "rendering scripts")
    scripts = list(scheduler.previews(shown, test=args.test_only, complete=every))
    notes = plan.warnings(actions, scheduler)
    if args.json:
        for line in notes:
            print_warning(line)
        add_json(
            [_existing_or_planned(action, plan.root) for action in actions],
            sweep=plan.sweep,
            scaling=plan.expanded.scaling,
            base_ranks=plan.expanded.base_ranks,
            cluster=scheduler.name,
            plans=runs,
            batches=[_script_json(script, scheduler) for script in scripts],
        )
    else:
        reports = not (args.wait or args.no_report) and any(action.submits for action in actions)
        starting = [run["cost_bound"] for run in runs if run["action"] in ("submit", "retry")]
        parts = [
            _head(plan.expanded, scheduler, plan.root, runs),
            table(_COLUMNS, [_table_row(run) for run in runs]),
            "\n".join(
                [
                    f"would start {len(starting)} of {len(runs)}{total_cost(starting)}",
                    *(f"warning: {line}" for line in notes),
                    *limit_lines(plan, scheduler),
                    *_added_runs(plan, starting, scheduler),
                ]
            ),
            memory_text(runs),
            _environment_text(runs, plan.root.absolute() / plan.sweep),
            _commands_text(runs) if scheduler.one_machine else _scripts_text(scripts, scheduler, every=every),
            _report_text() * reports,
            DRY_RUN,
        ]
        print("\n\n".join(filter(None, parts)))
    refused = [script for script in scripts if script.check and not script.check.accepted]
    if refused:
        print_error(f"{scheduler.title} refuses {len(refused)} of {count(len(scripts), 'batch script')}")
    return EXIT_RUNS_MISSING if refused else 0


def _added_runs(plan: Plan, starting: Sequence[dict[str, Any]], scheduler: Scheduler) -> list[str]:
    """The line on the runs that may be added, and on the cost of all together; none without a rule."""
    every = plan.possible
    if every is None or plan.expanded is None or (rule := every.repeats) is None:
        return []
    planned = {run.config_key for run in plan.expanded.runs}
    added = [cost_bound(run, scheduler) for run in every.runs if run.config_key not in planned]
    if not added:
        return []
    return [
        f"up to {count(len(added), 'run')} follow, until each throughput is within ±{100 * rule.within:g} % "
        f"or has {rule.most} repeats: with them{total_cost([*starting, *added])}"
    ]


def _existing_or_planned(action: Action, root: Path) -> RunState:
    key = action.plan.config_key if action.plan else None
    return action.state or RunState(RunDir(root / action.sweep / action.name), "planned", config_key=key)


def _report_text() -> str:
    if line := missing():
        return f"no report would be written: {line}"
    return "after the runs, a small job would write the report (--no-report submits none)"


def _plans(
    actions: Iterable[Action],
    plan: Plan,
    scheduler: Scheduler,
    code: Mapping[str, Any],
    *,
    every: bool,
) -> Iterator[dict[str, Any]]:
    """Each run in the output of `--json`; without `every`, the commands of the first run alone."""
    root, profile = plan.root.absolute(), scheduler.profile(None)
    inherited = scheduler.submission_environment(os.environ)
    network = {}
    if "GLOO_SOCKET_IFNAME" not in inherited:  # each node derives it
        reason = "the interface by which this node reaches the others by name"
        network["GLOO_SOCKET_IFNAME"] = environment.AddedVariable(INTERFACE, reason, "derived")
    added_variables = functools.partial(
        environment.added_variables,
        inherited=inherited,
        code=root / code["path"],
        source=code["source"],
        one_machine=scheduler.one_machine,
        profile=profile.as_dict() if profile else None,
    )
    reader = code_copy.CommandReader(root)
    for number, action in enumerate(actions):
        assert action.plan is not None
        config, run = action.plan.config, RunDir(root / action.sweep / action.name)
        attempt = run.attempt(action.state.attempts if action.state else 0)
        filled = fill(config.as_dict(), run, attempt.number)
        about = reader.read(config.command, Path.cwd()) if config.command else None
        key = run_key(action.plan.config_key, (about or code)["hash"] or "")
        record = {"config": filled, "run_key": key, "provenance": {"command": about}}
        command = run_code.command_of_run(run, record)
        variables = environment.command_variables(run, run.attempt(0), filled) if command else {}
        search_path = command.search_path(inherited.get("PYTHONPATH", "")) if command else None
        nodes = config.resources.nodes
        fabric = network if nodes > 1 else None
        variables |= added_variables(filled, fabric=fabric, search_path=search_path)
        commands = []
        if scheduler.one_machine and (every or number == 0):
            for node in range(nodes):
                words = launch_command(run, attempt, record, node, nodes, Endpoint("127.0.0.1", 0))
                words[words.index("--master-port") + 1] = PORT
                commands.append(words)
        variables_json = environment.env_record(variables)["variables"]
        yield _plan(action, action.plan, scheduler) | {"env": variables_json, "commands": commands}


def _plan(action: Action, plan: RunPlan, scheduler: Scheduler) -> dict[str, Any]:
    """One run in the output of `--json`. A batch size that the ranks find themselves is `auto`."""
    config, train = plan.config, plan.config.train
    plain = config.as_dict()
    batch = {
        "local": train.local_batch_size,
        "accumulation": plan.batch and plan.batch.accumulation,
        "ranks": config.world_size // config.stages,
        "global": train.global_batch_size,
    }
    return {
        "sweep": action.sweep,
        "run": action.name,
        "action": action.kind,
        "reason": action.reason,
        "nodes": config.resources.nodes,
        "ranks_per_node": ranks_per_node(plain),
        "batch": None if config.command else batch,
        "steps": train.steps,
        "epochs": train.epochs,
        "strategy": None if config.command else planned_strategy(config),
        "time_limit_min": config.job.time_limit_min,
        "cost_bound": cost_bound(plan, scheduler),
        "config_key": plan.config_key,
        "config": plain,
    }


_COLUMNS = (
    "RUN", "ACTION", "NODES x RANKS", "LOCAL x ACCUM x RANKS = GLOBAL", "LENGTH", "STRATEGY", "LIMIT", "COST",
)  # fmt: skip


def _head(plan: SweepPlan, scheduler: Scheduler, root: Path, runs: Sequence[dict[str, Any]]) -> str:
    head = f"sweep {plan.name}: {count(len(runs), 'run')} on {scheduler.name} in {root / plan.name}; "
    if all(run["batch"] is None for run in runs):
        return f"{head}each run is a command"
    if plan.base_ranks is None:
        return f"{head}batch sizes are not scaled"
    held = "train.local_batch_size" if plan.scaling == "weak" else "train.global_batch_size"
    ranks = count(plan.base_ranks, "rank")
    return f"{head}{plan.scaling} scaling holds {held}, set for {ranks}"


def _table_row(run: dict[str, Any]) -> tuple[str, ...]:
    batch, bound, action = run["batch"], run["cost_bound"], run["action"].replace("_", " ")
    length = count(run["steps"], "step") if run["steps"] else f"{plain(run['epochs'])} epochs"
    return (
        run["run"],
        action if action == run["reason"] else f"{action}: {run['reason']}",
        f"{run['nodes']} x {run['ranks_per_node']}",
        "{} x {} x {} = {}".format(*(size or "auto" for size in batch.values())) if batch else "",
        length if batch else "",
        run["strategy"] or "",
        f"{plain(run['time_limit_min'])} min",
        f"<= {bound['hours']:.3g} {bound['unit']}",
    )


def _environment_text(runs: Sequence[dict[str, Any]], sweep: Path) -> str:
    """Variables added to the environment, once for all runs with the same ones but for the run directory."""
    groups: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    for run in runs:
        folder = f"{sweep}/{run['run']}"
        rows = []
        for name, variable in run["env"].items():
            value = variable["value"]
            if len(runs) > 1 and f"{value}/".startswith(f"{folder}/"):
                value = f"{sweep}/RUN{value.removeprefix(folder)}"
            rows.append((f"  {name}={value}", variable["reason"], f"({variable['source']})"))
        groups.setdefault(tuple(rows), []).append(run["run"])
    return "\n\n".join(
        f"added to the environment of {'every rank' if len(groups) == 1 else some_of(names)}:"
        + table(("", "", ""), rows)
        for rows, names in groups.items()
    )


def _commands_text(runs: Sequence[dict[str, Any]]) -> str:
    """The commands of the runs that have some: all, or the first."""
    lines = [f"commands of each node ({PORT} is chosen when the run starts):"]
    shown = [run for run in runs if run["commands"]]
    for run in shown:
        lines.append(f"  {run['run']}")
        lines += [f"    node {node}: {' '.join(command)}" for node, command in enumerate(run["commands"])]
    if others := len(runs) - len(shown):
        lines.append(
            f"  {count(others, 'more run')}: with their own run directory and rendezvous id, on the nodes "
            "and ranks of the table (--all-scripts prints the commands)"
        )
    return "\n".join(lines)


def _script_json(script: ScriptPreview, scheduler: Scheduler) -> dict[str, Any]:
    """One script in the output of `--json`."""
    check, fields = script.check, dataclasses.asdict(script)
    test = check and {"accepted": check.accepted, f"{scheduler.name}_says": check.message}
    return {name: fields[name] for name in ("name", "runs", "profile", "script")} | {"test": test}


def _scripts_text(scripts: Sequence[ScriptPreview], scheduler: Scheduler, *, every: bool) -> str:
    """The first script, and the options of the others that differ; with `every`, each script.

    The scheduler's answer to each script follows.
    """
    shown = scripts if every else scripts[:1]
    parts = [
        f"batch script of {_title(script)}, profile {script.profile}:\n\n{script.script}" for script in shown
    ]
    if len(scripts) > len(shown):
        parts.append(differences_text(scripts))
    for script in scripts:
        if script.check is not None:
            verb = "accepts" if script.check.accepted else "refuses"
            parts.append(f"{scheduler.title} {verb} {_title(script)}: {script.check.message}")
    return "\n".join(parts)


def differences_text(scripts: Sequence[ScriptPreview]) -> str:
    """Options in which scripts differ from the first one, with the scripts that have them."""
    first, *others = scripts
    groups: dict[str, list[str]] = {}
    for script in others:
        names = {option.partition("=")[0] for option in script.options}
        absent = [name for option in first.options if (name := option.partition("=")[0]) not in names]
        differing = [option for option in script.options if option not in first.options]
        text = " ".join([*differing, *(f"without {name}" for name in absent)])
        groups.setdefault(text or "the same", []).append(_title(script))
    head = f"{count(len(others), 'more script')}, for other runs (names, tags, folders and job ids differ; "
    lines = [f"  {options}: {some_of(names, '; ')}" for options, names in groups.items()]
    return "\n".join([f"{head}--all-scripts prints them), with these options:", *lines])


def _title(script: ScriptPreview) -> str:
    return script.runs[0] if len(script.runs) == 1 else f"runs {some_of(script.runs)}"


_PARTS = ("parameters", "gradients", "optimizer", "communication", "activations", "total")
_SIZES = ("LOCAL", "WEIGHTS", "GRADIENTS", "OPTIMIZER", "COMMUNICATION", "ACTIVATIONS", "PEAK")


def memory_text(runs: Sequence[dict[str, Any]]) -> str:
    """A table of the estimates, and a line for each run without one; empty if none was requested.

    Of `auto`, a row of each strategy that it chooses from.
    """
    rows, lines = [], ["estimated peak memory of a rank (without the CUDA context and buffers of NCCL):"]
    estimates = [(run["run"], run["memory"]) for run in runs if "memory" in run]
    for name, estimate in estimates:
        candidates = estimate.get("candidates")
        for each in candidates or [estimate] * ("reason" not in estimate):
            sizes = [size(each[f"{part}_bytes"]) for part in _PARTS]
            auto = "auto: " if candidates else ""
            rows.append((name, f"{auto}{each['strategy']}", str(each["local_batch_size"]), *sizes))
    if rows:
        lines.append(table(("RUN", "STRATEGY", *_SIZES), rows, frozenset(_SIZES)))
    if any("candidates" in estimate for _, estimate in estimates):
        lines.append("auto: the ranks take the first of these strategies that fits their devices, less 8 %")
    lines += [f"{name}: no estimate: {found['reason']}" for name, found in estimates if "reason" in found]
    return "\n".join(lines) if estimates else ""
