"""Text of a dry run: sweep, runs, costs, environment, and scripts or commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs.cli.action_table import DRY_RUN
from jobs.cli.batch_scripts import scripts_text
from jobs.cli.cost_bound import CostBound, total_text
from jobs.cli.estimate_text import memory_text
from jobs.cli.formatting import count, plain, some_of, table
from jobs.schedulers.base import Scheduler, ScriptPreview
from sweeps.expand import SweepPlan

PORT = "PORT"
"""Placeholder of the port in a command: it is chosen when the run starts."""

_COLUMNS = (
    "RUN",
    "ACTION",
    "NODES x RANKS",
    "LOCAL x ACCUM x RANKS = GLOBAL",
    "LENGTH",
    "STRATEGY",
    "LIMIT",
    "COST",
)
_REPORT_JOB = "after the runs, a small job would write the report (--no-report submits none)"


def dry_run_text(
    plan: SweepPlan,
    scheduler: Scheduler,
    root: Path,
    runs: list[dict[str, Any]],
    notes: list[str],
    scripts: list[ScriptPreview],
    *,
    report_job: bool,
    every: bool,
) -> str:
    """The whole text.

    `runs` are the entries of `--json`, `notes` lines below the table; `report_job`: whether a report job is
    submitted; `every`: whether all scripts are printed.
    """
    head = f"sweep {plan.name}: {count(len(runs), 'run')} on {scheduler.name} in {root / plan.name}; "
    if all(run["batch"] is None for run in runs):
        head += "each run is a command"
    elif plan.base_ranks is None:
        head += "batch sizes are not scaled"
    else:
        held = "train.local_batch_size" if plan.scaling == "weak" else "train.global_batch_size"
        head += f"{plan.scaling} scaling holds {held}, set for {count(plan.base_ranks, 'rank')}"
    parts = [
        head,
        table(_COLUMNS, [_table_row(run) for run in runs]),
        "\n".join([_total_line(runs), *notes]),
        memory_text(runs),
        _environment_text(runs, root.absolute() / plan.name),
        _commands_text(runs) if scheduler.one_machine else scripts_text(scripts, scheduler, every=every),
        _REPORT_JOB if report_job else "",
    ]
    parts = [part for part in parts if part]
    return "\n\n".join([*parts, DRY_RUN])


def _table_row(run: dict[str, Any]) -> tuple[str, ...]:
    batch, bound = run["batch"], run["cost_bound"]
    action = run["action"].replace("_", " ")
    length = count(run["steps"], "step") if run["steps"] else f"{plain(run['epochs'])} epochs"
    sizes = batch and "{} x {} x {} = {}".format(
        *(batch[key] or "auto" for key in ("local", "accumulation", "ranks", "global"))
    )
    return (
        run["run"],
        action if action == run["reason"] else f"{action}: {run['reason']}",
        f"{run['nodes']} x {run['ranks_per_node']}",
        sizes or "",
        length if batch else "",
        run["strategy"] or "",
        f"{plain(run['time_limit_min'])} min",
        f"<= {bound['hours']:.3g} {bound['unit']}",
    )


def _total_line(runs: list[dict[str, Any]]) -> str:
    starting = [CostBound(**run["cost_bound"]) for run in runs if run["action"] in ("submit", "retry")]
    return f"would start {len(starting)} of {len(runs)}{total_text(starting)}"


def _environment_text(runs: list[dict[str, Any]], sweep: Path) -> str:
    """Variables added to the environment, once for all runs with the same variables.

    The run directory of each of several runs is that of `RUN`.
    """
    groups: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    for run in runs:
        folder = f"{sweep}/{run['run']}" if len(runs) > 1 else None
        rows = tuple(
            (
                f"  {name}={_in_folder_of_run(each['value'], folder, sweep)}",
                each["reason"],
                f"({each['source']})",
            )
            for name, each in run["env"].items()
        )
        groups.setdefault(rows, []).append(run["run"])
    return "\n\n".join(
        "\n".join([
            f"added to the environment of {'every rank' if len(groups) == 1 else some_of(names)}:",
            *table(("", "", ""), rows).splitlines()[1:],
        ])
        for rows, names in groups.items()
    )  # fmt: skip


def _in_folder_of_run(value: str, folder: str | None, sweep: Path) -> str:
    """The value of a variable, with `RUN` in place of the name of the run in its run directory `folder`."""
    if folder is None or not (value == folder or value.startswith(f"{folder}/")):
        return value
    return f"{sweep}/RUN{value.removeprefix(folder)}"


def _commands_text(runs: list[dict[str, Any]]) -> str:
    """The commands of the runs that have some: all, or the first."""
    lines = [f"commands of each node ({PORT} is chosen when the run starts):"]
    shown = [run for run in runs if run["commands"]]
    for run in shown:
        lines.append(f"  {run['run']}")
        lines += [f"    node {node}: {' '.join(command)}" for node, command in enumerate(run["commands"])]
    others = len(runs) - len(shown)
    if others:
        lines.append(
            f"  {count(others, 'more run')}: with their own run directory and rendezvous id, on the nodes "
            "and ranks of the table (--all-scripts prints the commands)"
        )
    return "\n".join(lines)
