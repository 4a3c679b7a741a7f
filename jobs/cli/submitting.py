"""What `sweep`, `run` and `resume` share: submit what is missing, say what was done, wait if asked to."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from disttrain.records.collect_provenance import code_hash
from disttrain.records.run_directory import RunDir
from jobs.cli import follow, target
from jobs.cli.formatting import table
from jobs.cli.json_output import print_json, state_as_json
from jobs.cli.polling import PolledRuns, print_warning
from jobs.schedulers.base import Scheduler, SubmitError
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_runs, read_state
from jobs.submission import report_job
from jobs.submission.actions import Action, plan_actions, sweep_lock
from jobs.submission.request import sweep_name, write_sweep_record
from jobs.submission.submit import carry_out
from jobs.submission.warnings import warnings_for
from sweeps.expand import SweepPlan

MakePlan = Callable[[argparse.Namespace, list[RunState]], SweepPlan]

EXIT_FAILED = 1
_VERB = {
    "submit": "submitted",
    "retry": "submitted again",
    "up_to_date": "done",
    "in_progress": "in progress",
    "outdated": "outdated",
    "blocked": "blocked",
    "deferred": "deferred",
}
_ORDER = tuple(_VERB)


def run(args: argparse.Namespace, make_plan: MakePlan) -> int:
    """Carry out the plan that `make_plan` reads from the arguments."""
    root, name = args.runs, sweep_name(args)
    there = read_runs(root, name)
    planned = make_plan(args, there)  # bad input ends here, before anything is written
    if args.dry_run or args.test_only:
        from jobs.cli.dry_run import describe

        return describe(args, planned)
    scheduler = target.chosen_scheduler(args, there)
    with sweep_lock(root / name):
        states = refresh(read_runs(root, name), scheduler, receipts=True, say=print_warning)
        planned = make_plan(args, states)
        write_sweep_record(root, planned)
        actions = plan_actions(planned, states, code_hash())
        starting = [action.plan for action in actions if action.submits and action.plan]
        for line in warnings_for(starting, scheduler):
            print(f"warning: {line}", file=sys.stderr)
        try:
            actions = carry_out(actions, scheduler, root)
        except SubmitError as error:
            return refused(error, name)
        except KeyboardInterrupt:
            print("interrupted while submitting; the same command goes on from there", file=sys.stderr)
            raise
        reports = [] if args.wait else report_later(args, scheduler, name, actions)
    runs = [RunDir(root / name / action.name) for action in actions]
    return tell(actions, runs, scheduler, args, reports)


def refused(error: SubmitError, sweep: str) -> int:
    """Say that the cluster took no more jobs."""
    print(
        f"error: {error}; what was submitted before it is on its way: submit.py status {sweep}",
        file=sys.stderr,
    )
    return EXIT_FAILED


def report_later(
    args: argparse.Namespace, scheduler: Scheduler, sweep: str, actions: Sequence[Action]
) -> list[str]:
    """See to the report of a sweep that nobody waits for; what is to be said about it.

    Belongs inside `sweep_lock`.
    """
    if args.no_report:
        return []
    try:
        job_id = report_job.ensure(args.runs, sweep, scheduler, anew=any(action.job_id for action in actions))
    except SubmitError as error:
        return [f"no job will write the report of {sweep}: {error}"]
    where = args.runs / sweep / "report" / "report.html"
    return [f"report: {where}, by job {job_id} when these runs have ended"] if job_id else []


def tell(
    actions: Sequence[Action],
    runs: Sequence[RunDir],
    scheduler: Scheduler,
    args: argparse.Namespace,
    reports: Sequence[str],
) -> int:
    """Say what was done about each run, then follow them if `--wait` was given."""
    if not args.json:
        rows = [(_VERB[action.kind], action.name, action.job_id or "", action.reason) for action in actions]
        print(table(("WHAT", "RUN", "JOB", "WHY"), rows))
        print(f"\n{summary(actions)} (cluster: {scheduler.name})")
        if any(action.kind == "outdated" for action in actions):
            print(
                "outdated: done by other code than the current one, and kept; `clean --stale` moves such runs"
            )
    states: list[RunState] = []
    if args.wait:
        out = sys.stderr if args.json else sys.stdout
        code = code_hash()  # once: hashing all sources each second would disturb the runs that are timed
        try:
            states = follow.follow(PolledRuns(lambda: _read(runs, code), scheduler), args.runs, out=out)
        except KeyboardInterrupt:  # from here on nobody waits for them
            for sweep in dict.fromkeys(run.sweep for run in runs):
                with sweep_lock(args.runs / sweep):
                    for line in report_later(args, scheduler, sweep, actions):
                        print(line, file=sys.stderr)
            raise
    elif not args.json and any(action.submits or action.kind == "in_progress" for action in actions):
        sweeps = " ".join(dict.fromkeys(run.sweep for run in runs))
        where = "" if args.runs == Path("runs") else f" --runs {args.runs}"
        print(f"follow them: submit.py watch {sweeps}{where}", *reports, sep="\n")
    if args.json:
        print_json(
            [
                {"action": action.kind, "reason": action.reason, **state_as_json(state)}
                for action, state in zip(actions, states or read_states(runs), strict=True)
            ]
        )
    left = say_what_is_left(actions)
    return follow.exit_code(states) or left if args.wait else left


def say_what_is_left(actions: Sequence[Action]) -> int:
    """Say how many runs the cluster has no room for now; the exit code."""
    left = [action for action in actions if action.kind == "deferred"]
    if not left:
        return 0
    runs = "1 run" if len(left) == 1 else f"{len(left)} runs"
    print(f"{runs} deferred: {left[0].reason}; the same command submits them later", file=sys.stderr)
    return EXIT_FAILED


def read_states(runs: Sequence[RunDir]) -> list[RunState]:
    """The states of these runs now."""
    return _read(runs, code_hash())


def _read(runs: Sequence[RunDir], code: str) -> list[RunState]:
    return [read_state(run, code_hash=code) for run in runs]


def summary(actions: Sequence[Action]) -> str:
    """`3 runs: 1 submitted, 2 done`."""
    counts = Counter(action.kind for action in actions)
    parts = [f"{counts[kind]} {_VERB[kind]}" for kind in _ORDER if counts[kind]]  # type: ignore[index]
    return f"{len(actions)} run{'' if len(actions) == 1 else 's'}: {', '.join(parts) or 'nothing to do'}"
