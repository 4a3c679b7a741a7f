"""Shared by `sweep`, `run` and `resume`: submit missing runs, print the actions, wait for the runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from disttrain.records.collect_provenance import code_hash
from disttrain.records.run_directory import RunDir
from jobs.cli import follow, sweep_end, target
from jobs.cli.action_table import EXIT_RUNS_MISSING, action_table, actions_json, report_missing
from jobs.cli.command_output import add_json, print_error, print_warning
from jobs.cli.confirmation import require_yes
from jobs.cli.formatting import runs_flag
from jobs.cli.max_running import job_chains, limit_line
from jobs.cli.polling import PolledRuns
from jobs.cli.progress_bar import progress
from jobs.core.sweep_lock import sweep_lock
from jobs.schedulers.base import Scheduler, SubmitError
from jobs.status import run_state
from jobs.status.annotations import annotate, check_tags
from jobs.status.refresh import refresh
from jobs.status.run_folders import runs_of
from jobs.status.run_state import RunState, read_runs
from jobs.submission import report_job
from jobs.submission.choose_actions import Action, plan_actions
from jobs.submission.request import command_hashes, discard_sweep_record, sweep_name, write_sweep_record
from jobs.submission.start_from_check import check_start_from
from jobs.submission.submit import carry_out
from jobs.submission.warnings import excluded_nodes_warning, warnings_for
from sweeps.expand import SweepPlan

MakePlan = Callable[[argparse.Namespace, list[RunState]], SweepPlan]


def submit_plan(args: argparse.Namespace, make_plan: MakePlan) -> int:
    """Submit the missing runs of the plan that `make_plan` builds from arguments and existing runs."""
    root, name = args.runs, sweep_name(args)
    check_tags(args.tags, "--tag")
    existing = read_runs(root, name, progress=progress)
    planned = make_plan(args, existing)  # refuses bad input before anything is written
    commands = command_hashes(planned, root)
    if args.dry_run or args.test_only or args.memory:
        from jobs.cli.dry_run import print_dry_run

        return print_dry_run(args, planned)
    scheduler = target.chosen_scheduler(args, existing)
    check_start_from(planned.runs, {state.config_key for state in existing}, root, scheduler)
    actions = plan_actions(planned, existing, code_hash(), commands, from_scratch=args.from_scratch)
    require_yes(args, actions, scheduler)
    with sweep_lock(root / name):
        states = refresh(
            read_runs(root, name, progress=progress), scheduler, receipts=True, warn=print_warning
        )
        planned = make_plan(args, states)
        is_new = write_sweep_record(root, planned)
        actions = plan_actions(planned, states, code_hash(), commands, from_scratch=args.from_scratch)
        starting = [action.plan for action in actions if action.submits and action.plan]
        for line in [
            *warnings_for(starting, scheduler, planned.runs, root),
            *excluded_nodes_warning(root, scheduler),
        ]:
            print_warning(line)
        try:
            chains = job_chains(args, states, scheduler)
            actions = carry_out(
                actions,
                scheduler,
                root,
                chains=chains,
                skip_preflight=args.skip_preflight,
                progress=progress,
            )
        except SubmitError as error:
            if is_new:
                discard_sweep_record(root, name)
            return print_refusal(error, root, name)
        except KeyboardInterrupt:
            print("interrupted: the same command submits the remaining runs", file=sys.stderr)
            raise
        _annotate(args, root / name, actions)
        reports = limit_line(args, name, scheduler)
        reports += [] if args.wait else submit_report_job(args, scheduler, name, actions)
    runs = [RunDir(root / name / action.name) for action in actions]
    return print_actions_and_wait(actions, runs, [scheduler], args, reports)


def _annotate(args: argparse.Namespace, sweep: Path, actions: Sequence[Action]) -> None:
    """Add `--tag` and `--note` to the sweep, or to the run of `submit.py run`."""
    if args.tags or args.note is not None:
        folders = [sweep / action.name for action in actions] if args.verb == "run" else [sweep]
        for folder in folders:
            annotate(folder, add=args.tags, note=args.note)


def print_refusal(error: SubmitError, root: Path, sweep: str) -> int:
    """Print the scheduler's refusal, and return the exit code."""
    print_error(f"error: {refusal_line(error, root, sweep)}")
    return EXIT_RUNS_MISSING


def refusal_line(error: SubmitError, root: Path, sweep: str) -> str:
    """The scheduler's refusal, and the command that lists the runs of the sweep, if there are any."""
    hint = f"; list the runs: submit.py status {sweep}{runs_flag(root)}" if runs_of(root, sweep) else ""
    return f"{error}{hint}"


def submit_report_job(
    args: argparse.Namespace, scheduler: Scheduler, sweep: str, actions: Sequence[Action]
) -> list[str]:
    """Submit the job that writes the report after the sweep's runs; return the lines to print.

    The caller holds `sweep_lock`.
    """
    if args.no_report:
        return []
    try:
        job_id = report_job.ensure(args.runs, sweep, scheduler, anew=any(action.job_id for action in actions))
    except SubmitError as error:
        return [f"no job will write the report of {sweep}: {error}"]
    page = args.runs / sweep / "report" / "report.html"
    return [f"report: {page}, by job {job_id} when these runs have ended"] if job_id else []


def print_actions_and_wait(
    actions: Sequence[Action],
    runs: Sequence[RunDir],
    schedulers: Sequence[Scheduler],
    args: argparse.Namespace,
    reports: Sequence[str],
    *,
    refusal: str | None = None,
) -> int:
    """Print the action on each run; with `--wait`, show the runs until they end. Returns the exit code.

    `refusal` is printed after the actions: the reason why further runs were not submitted.
    """
    if not args.json:
        print(action_table(actions, [scheduler.name for scheduler in schedulers]), flush=True)
    if refusal is not None:
        print_error(f"error: {refusal}")
    states: list[RunState] = []
    if args.wait:
        states = _wait(actions, runs, schedulers, args)
    elif not args.json:
        if any(action.submits or action.kind == "in_progress" for action in actions):
            print(f"watch them: submit.py watch {' '.join(_sweeps(runs))}{runs_flag(args.runs)}")
        print(*(f"{line}\n" for line in reports), sep="", end="")
    if args.json:
        add_json(states or read_states(runs), actions=actions_json(actions))
    exit_code = report_missing(actions)
    if refusal is not None:
        exit_code = EXIT_RUNS_MISSING
    return follow.exit_code(states) or exit_code if args.wait else exit_code


def _wait(
    actions: Sequence[Action],
    runs: Sequence[RunDir],
    schedulers: Sequence[Scheduler],
    args: argparse.Namespace,
) -> list[RunState]:
    """Show the runs until all have ended. Ctrl-C submits the report job, since the runs continue."""
    code = code_hash()  # once: hashing all sources every second would slow runs on this machine
    of_this_host = next((scheduler for scheduler in schedulers if scheduler.one_machine), None)
    polled = PolledRuns(lambda: run_state.read_states(runs, code_hash=code), of_this_host)
    try:
        states = follow.follow(polled, args.runs)
    except KeyboardInterrupt:
        for sweep in _sweeps(runs):
            with sweep_lock(args.runs / sweep):
                for scheduler in schedulers:
                    for line in submit_report_job(args, scheduler, sweep, actions):
                        print(line, file=sys.stderr)
        raise
    if any(action.submits or action.kind == "in_progress" for action in actions):
        for sweep in _sweeps(runs):
            sweep_end.call_after_wait(args.runs, sweep)
    return states


def _sweeps(runs: Sequence[RunDir]) -> list[str]:
    return list(dict.fromkeys(run.sweep for run in runs))


def read_states(runs: Sequence[RunDir]) -> list[RunState]:
    """Current states of these runs, from their files."""
    return run_state.read_states(runs, code_hash=code_hash(), progress=progress)
