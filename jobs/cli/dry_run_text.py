"""Text of a dry run: sweep, runs, costs, environment, and scripts or commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.cli.action_table import DRY_RUN
from jobs.cli.cost_bound import CostBound, total_text
from jobs.cli.formatting import count, plain, size, some_of, table
from jobs.schedulers.interface import Scheduler, ScriptPreview
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


def script_json(preview: ScriptPreview, scheduler: Scheduler) -> dict[str, Any]:
    """One script in the output of `--json`."""
    check = preview.check
    return {
        "name": preview.name,
        "runs": list(preview.runs),
        "profile": preview.profile,
        "script": preview.script,
        "test": check and {"accepted": check.accepted, f"{scheduler.name}_says": check.message},
    }


def scripts_text(previews: Sequence[ScriptPreview], scheduler: Scheduler, *, every: bool) -> str:
    """The first script, and the options of the others that differ; with `every`, each script.

    The scheduler's answer to each script follows.
    """
    if every or len(previews) < 2:
        return "\n".join(_section(preview, scheduler) for preview in previews)
    parts = [_section(previews[0], scheduler), differences_text(previews)]
    answers = [
        f"{scheduler.title} {_verb(preview)} {_title(preview)}: {preview.check.message}"
        for preview in previews[1:]
        if preview.check is not None
    ]
    return "\n".join([*parts, *answers])


def differences_text(previews: Sequence[ScriptPreview]) -> str:
    """Options in which scripts differ from the first one, with the scripts that have them."""
    first, *others = previews
    groups: dict[tuple[str, ...], list[str]] = {}
    for preview in others:
        groups.setdefault(_difference(first.options, preview.options), []).append(_title(preview))
    lines = [
        f"{count(len(others), 'more script')}, for other runs (names, tags, folders and job ids differ; "
        "--all-scripts prints them), with these options:"
    ]
    for options, names in groups.items():
        lines.append(f"  {' '.join(options) or 'the same'}: {some_of(names, '; ')}")
    return "\n".join(lines)


def _difference(first: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    names = {option.partition("=")[0] for option in other}
    absent = [option.partition("=")[0] for option in first if option.partition("=")[0] not in names]
    return (*(option for option in other if option not in first), *(f"without {name}" for name in absent))


def _section(preview: ScriptPreview, scheduler: Scheduler) -> str:
    text = f"batch script of {_title(preview)}, profile {preview.profile}:\n\n{preview.script}"
    if preview.check is not None:
        text += f"\n{scheduler.title} {_verb(preview)} it: {preview.check.message}\n"
    return text


def _verb(preview: ScriptPreview) -> str:
    return "accepts" if preview.check and preview.check.accepted else "refuses"


def _title(preview: ScriptPreview) -> str:
    return preview.runs[0] if len(preview.runs) == 1 else f"array of {some_of(preview.runs)}"


_MEMORY_COLUMNS = (
    "RUN",
    "STRATEGY",
    "LOCAL",
    "WEIGHTS",
    "GRADIENTS",
    "OPTIMIZER",
    "COMMUNICATION",
    "ACTIVATIONS",
    "PEAK",
)
_PARTS = ("parameters", "gradients", "optimizer", "communication", "activations", "total")
_BYTES = frozenset(_MEMORY_COLUMNS[2:])


def memory_text(runs: Sequence[dict[str, Any]]) -> str:
    """A table of the estimates, and a line for each run without one; empty if none was requested."""
    estimates = [(run["run"], run["memory"]) for run in runs if "memory" in run]
    if not estimates:
        return ""
    rows = [row for name, found in estimates if "reason" not in found for row in _memory_rows(name, found)]
    lines = ["estimated peak memory of a rank (without the CUDA context and buffers of NCCL):"]
    lines += [table(_MEMORY_COLUMNS, rows, _BYTES)] if rows else []
    if any("candidates" in found for _, found in estimates):
        lines.append("auto: the ranks take the first of these strategies that fits their devices, less 8 %")
    lines += [f"{name}: no estimate: {found['reason']}" for name, found in estimates if "reason" in found]
    return "\n".join(lines)


def _memory_rows(name: str, found: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row of the estimate; of `auto`, one of each strategy that it chooses from."""
    candidates = found.get("candidates")
    return [
        (
            name,
            each["strategy"] if candidates is None else f"auto: {each['strategy']}",
            str(each["local_batch_size"]),
            *(size(each[f"{field}_bytes"]) for field in _PARTS),
        )
        for each in candidates or [found]
    ]
