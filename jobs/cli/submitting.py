"""Shared by `sweep`, `run` and `resume`: submit the runs of plans, print the actions, wait for the runs."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash
from disttrain.records.run_directory import RunDir
from jobs.cli import follow, sweep_end, target
from jobs.cli.action_table import EXIT_RUNS_MISSING, action_table, actions_json, report_missing
from jobs.cli.command_output import add_json, print_error, print_warning
from jobs.cli.cost_bound import require_yes
from jobs.cli.formatting import runs_flag
from jobs.cli.progress_bar import progress
from jobs.cli.selection import read_states
from jobs.core.lock import sweep_lock
from jobs.schedulers.interface import Scheduler, SubmitError
from jobs.status import run_state
from jobs.status.run_folders import check_tags, runs_of
from jobs.status.run_state import RunState, read_runs
from jobs.submission import pipeline
from jobs.submission.pipeline import Outcome, Plan
from jobs.submission.request import command_hashes, sweep_name
from jobs.submission.start_from_check import check_start_from
from sweeps.expand import SweepPlan

MakePlan = Callable[[argparse.Namespace, list[RunState]], SweepPlan]


def submit_plan(args: argparse.Namespace, make_plan: MakePlan) -> int:
    """Submit the missing runs of the plan that `make_plan` builds from arguments and existing runs."""
    name = sweep_name(args)
    check_tags(args.tags, "--tag")
    existing = read_runs(args.runs, name, progress=progress)
    expanded = make_plan(args, existing)
    plan = Plan(
        args.runs,
        name,
        code_hash(),
        expanded,
        command_hashes(expanded, args.runs),
        **options(args),
        tags=args.tags,
        note=args.note,
        annotates_runs=args.verb == "run",
    )
    if args.dry_run or args.test_only or args.memory:
        from jobs.cli.dry_run import print_dry_run

        return print_dry_run(args, plan, existing)
    scheduler = target.chosen_scheduler(args, existing)
    check_start_from(expanded.runs, {state.config_key for state in existing}, args.runs, scheduler)
    require_yes(args, plan.decide(existing), scheduler)
    return submit_all(args, [(plan, scheduler)])


def options(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of `Plan` that `sweep`, `run` and `resume` have."""
    return {
        "from_scratch": args.from_scratch,
        "skip_preflight": args.skip_preflight,
        "most_running": 1 if args.serial else args.max_running,
    }


def submit_all(args: argparse.Namespace, plans: Iterable[tuple[Plan, Scheduler | None]]) -> int:
    """Submit plans one after another until the first refusal; print the actions, and wait with `--wait`.

    What was submitted before a refusal is printed. Runs of a plan without a scheduler are done.
    """
    outcomes: list[Outcome] = []
    refusal: Exception | None = None
    warn = functools.cache(print_warning)  # each line once
    report = not (args.wait or args.no_report)
    try:
        for plan, scheduler in plans:
            if scheduler is None:
                outcomes.append(Outcome(plan, None, plan.decide(plan.states())))
                continue
            outcomes.append(pipeline.submit(plan, scheduler, report=report, progress=progress, warn=warn))
            if refusal := outcomes[-1].refusal:
                break
    except ConfigError as error:  # such as a lock that another process holds
        refusal = error
    except KeyboardInterrupt:
        print("interrupted: the same command submits the remaining runs", file=sys.stderr)
        raise
    if refusal is None:
        return print_outcomes(args, outcomes)
    hint = ""
    if isinstance(refusal, SubmitError) and runs_of(args.runs, outcomes[-1].plan.sweep):
        hint = f"; list the runs: submit.py status {outcomes[-1].plan.sweep}{runs_flag(args.runs)}"
    if any(outcome.submitted for outcome in outcomes):
        return print_outcomes(args, outcomes, f"{refusal}{hint}")
    if isinstance(refusal, ConfigError):
        raise refusal
    print_error(f"error: {refusal}{hint}")
    return EXIT_RUNS_MISSING


def print_outcomes(args: argparse.Namespace, outcomes: Sequence[Outcome], refusal: str | None = None) -> int:
    """Print the action on each run; with `--wait`, show the runs until they end. Returns the exit code.

    `refusal` is the reason why further runs were not submitted.
    """
    actions = [action for outcome in outcomes for action in outcome.actions]
    schedulers = list({each.scheduler.name: each.scheduler for each in outcomes if each.scheduler}.values())
    if args.verb == "resume" and not args.runs_given:  # without names, completed runs are not listed
        actions = [action for action in actions if action.kind not in ("up_to_date", "outdated")]
        if not actions and not args.json:
            print("nothing to resume: no run has failed, stopped, been cancelled or been lost")
            return 0
    runs = [RunDir(args.runs / action.sweep / action.name) for action in actions]
    if not args.json:
        names = [scheduler.name for scheduler in schedulers]
        print(action_table(actions, names, dry_run=args.dry_run), flush=True)
    if refusal is not None:
        print_error(f"error: {refusal}")
    waits = args.wait and not args.dry_run
    states = _wait(args, runs, schedulers, outcomes) if waits else []
    if args.json:
        add_json(states or read_states(runs), actions=actions_json(actions))
    elif not (waits or args.dry_run):
        if any(action.submits or action.kind == "in_progress" for action in actions):
            print(f"watch them: submit.py watch {' '.join(_sweeps(runs))}{runs_flag(args.runs)}")
        for outcome in outcomes:
            for line in [*limit_line(outcome.plan, outcome.scheduler), *_report_line(outcome)]:
                print(line)
    exit_code = report_missing(actions)
    if refusal is not None:
        exit_code = EXIT_RUNS_MISSING
    return follow.exit_code(states) or exit_code if waits else exit_code


def limit_line(plan: Plan, scheduler: Scheduler | None) -> list[str]:
    """The line that states the limit of runs at a time and its scope; none without a limit."""
    if plan.most_running is None or scheduler is None:
        return []
    if scheduler.one_machine:
        return [f"{scheduler.title} runs one of your jobs at a time, over all sweeps"]
    runs = "one run" if plan.most_running == 1 else f"{plan.most_running} runs"
    return [
        f"at most {runs} of {plan.sweep} at a time, with those submitted before; other sweeps do not count"
    ]


def _report_line(outcome: Outcome) -> list[str]:
    if isinstance(outcome.report, SubmitError):
        return [f"no job will write the report of {outcome.plan.sweep}: {outcome.report}"]
    page = outcome.plan.root / outcome.plan.sweep / "report" / "report.html"
    return [f"report: {page}, by job {outcome.report} when these runs have ended"] if outcome.report else []


def _wait(
    args: argparse.Namespace,
    runs: Sequence[RunDir],
    schedulers: Sequence[Scheduler],
    outcomes: Sequence[Outcome],
) -> list[RunState]:
    """Show the runs until all have ended. Ctrl-C submits the report jobs, since the runs continue."""
    code = code_hash()  # once: hashing all sources every second would slow runs on this machine
    of_this_host = next((scheduler for scheduler in schedulers if scheduler.one_machine), None)
    polled = follow.PolledRuns(lambda: run_state.read_states(runs, code_hash=code), of_this_host)
    try:
        states = follow.follow(polled, args.runs)
    except KeyboardInterrupt:
        for outcome in () if args.no_report else outcomes:
            if outcome.scheduler is not None:
                with sweep_lock(args.runs / outcome.plan.sweep):
                    for line in _report_line(pipeline.with_report(outcome)):
                        print(line, file=sys.stderr)
        raise
    actions = [action for outcome in outcomes for action in outcome.actions]
    if any(action.submits or action.kind == "in_progress" for action in actions):
        for sweep in _sweeps(runs):
            sweep_end.call_after_wait(args.runs, sweep)
    return states


def _sweeps(runs: Sequence[RunDir]) -> list[str]:
    return list(dict.fromkeys(run.sweep for run in runs))
