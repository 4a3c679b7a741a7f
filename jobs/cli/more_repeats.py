"""`--repeats auto:2%`: add repeats to each point of a sweep until the interval of its throughput is narrow.

runs so far ── wanted_runs (pure) ──> wanted runs ── the pipeline of any submission ──> jobs
     ^                                                                                   │
     └────────── --wait, or the report job: all runs have ended, and it decides again ───┘
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from disttrain.errors import ConfigError
from disttrain.records.exit_causes import ENDED_BY_REQUEST
from jobs.cli.command_output import print_error
from jobs.cli.report import missing
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_runs
from jobs.submission import pipeline
from jobs.submission.decide import Action
from jobs.submission.pipeline import Outcome, Plan
from sweeps.sweep_section import FIRST_REPEATS

_ENDED = ("up_to_date", "retry", "blocked")
"""Actions on runs that have ended with this code."""


def wanted_runs(points: Sequence[Sequence[Action]], lacking: Mapping[str, int]) -> list[list[Action]]:
    """The first repeats of each point, and those that it lacks once all of its runs have ended.

    `points` are the actions on all repeats that a point may have, `lacking` the numbers by run. A failed run
    counts as a repeat.
    """
    wanted = []
    for point in points:
        count = max(FIRST_REPEATS, *(number for number, each in enumerate(point, 1) if each.state), 0)
        if all(action.kind in _ENDED for action in point[:count]):
            count += max(lacking.get(action.name, 0) for action in point[:count])
        wanted.append(list(point[:count]))
    return wanted


def with_rule(plan: Plan, args: argparse.Namespace) -> Plan:
    """The plan of all runs of a sweep with `--repeats auto`, to which runs are added; any other as it is.

    Raises `ConfigError` where nothing would add them.
    """
    own = getattr(args, "report_job", None)
    if own is not None:
        args.wait = False
    if plan.expanded is None or plan.expanded.repeats is None:
        if own is not None:
            raise ConfigError("sweep.repeats has no rule any more: no repeat is added")
        return plan
    if args.no_report and not args.wait:
        message = "--repeats auto needs the report job, which adds the repeats, or --wait"
        raise ConfigError(message, at="--no-report")
    if line := missing():
        raise ConfigError(f"--repeats auto: {line}")
    command = args.argv if own is None else ()
    return replace(plan, possible=plan.expanded, command=command, report_job=own)


def submit(outcome: Outcome) -> Outcome:
    """Submit the runs that a sweep lacks, after those of `outcome` have ended."""
    scheduler, plan = outcome.scheduler, outcome.plan
    if scheduler is None or plan.possible is None:
        return replace(outcome, actions=())
    states = refresh(read_runs(plan.root, plan.sweep), scheduler)
    added = pipeline.submit(with_wanted(plan, states, added=True), scheduler)
    if added.refusal:
        print_error(f"error: {added.refusal}")
    return added


def with_wanted(plan: Plan, states: Sequence[RunState], *, added: bool = False) -> Plan:
    """The plan of the runs that are wanted now, given the present runs of the sweep.

    `added`: only runs that were never submitted, of points that have some: a failed run is not started again,
    and no axis comes in by an edit of the sweep file. After a run was cancelled or stopped, none is added. A
    sweep without the rule is returned as it is.
    """
    every = plan.possible
    if every is None or every.repeats is None:
        return plan
    actions = replace(plan, expanded=every).decide(states)[: len(every.runs)]  # without their follow-ups
    is_stopped = any(state.displayed_state in ENDED_BY_REQUEST for state in states)
    lacking: Mapping[str, int] = {}
    if not is_stopped and any(action.kind == "up_to_date" for action in actions):
        from analysis.comparison import repeats_lacking  # imports numpy

        lacking = repeats_lacking(plan.root / plan.sweep, every.repeats.within)
    size = len(actions) // every.repeats.most  # repeats are the outermost loop of a sweep
    wanted = wanted_runs([actions[at::size] for at in range(size)], lacking)
    if added:
        begun = [point for point in wanted if not is_stopped and any(action.state for action in point)]
        wanted = [[action for action in point if action.kind == "submit"] for point in begun]
    keys = {action.plan.config_key for point in wanted for action in point if action.plan}
    runs = tuple(run for run in every.runs if run.config_key in keys)
    wanted_plan = replace(plan, expanded=replace(every, runs=runs))
    return replace(wanted_plan, tags=(), note=None) if added else wanted_plan
