"""Shared by `sweep`, `run` and `resume`: submit the runs of plans, print the actions, wait for the runs.

The end of a sweep calls its hook, `job.on_end`, with the number of runs in each state: the report job does
after it has written the report, and a command with `--wait`, which submits no report job.
"""

from __future__ import annotations

import argparse
import functools
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash
from disttrain.records.run_directory import RunDir
from jobs import PROGRAM
from jobs.cli import follow, more_repeats, selection
from jobs.cli.command_output import add_json, print_error, print_warning, progress_stream
from jobs.cli.formatting import count, runs_flag, table
from jobs.cli.progress_bar import progress
from jobs.cli.report import missing
from jobs.cli.selection import read_states, refresh_or_warn
from jobs.core import hook
from jobs.core.lock import sweep_lock
from jobs.schedulers.interface import Scheduler, SubmitError
from jobs.status import run_state
from jobs.status.refresh import refresh
from jobs.status.run_folders import check_tags, runs_of
from jobs.status.run_state import RunState, read_runs
from jobs.submission import pipeline, report_job
from jobs.submission.before import check_start_from, excluded_nodes_warning
from jobs.submission.decide import Action, Kind, submission_time
from jobs.submission.follow_ups import with_done_runs
from jobs.submission.pipeline import Outcome, Plan
from jobs.submission.plan import command_hashes, sweep_name
from sweeps.expand import RunPlan, SweepPlan

EXIT_RUNS_MISSING = 1
"""Exit code when a submission was refused, blocked or deferred, or a dry run's script was refused."""
RUNS_WITHOUT_YES = 200
"""Largest number of runs that a command starts without `--yes`: 5 sizes x 8 variants x 5 repeats. A mistake
in one axis can multiply the number of runs."""
DRY_RUN = "dry run: nothing was written or submitted"
_DISPLAYED: dict[Kind, str] = {
    "submit": "submitted",
    "retry": "submitted again",
    "up_to_date": "done",
    "in_progress": "in progress",
    "outdated": "outdated",
    "blocked": "blocked",
    "deferred": "deferred",
}
_WOULD: dict[Kind, str] = {"submit": "would submit", "retry": "would submit again"}
MakePlan = Callable[[argparse.Namespace, list[RunState]], SweepPlan]


def submit_plan(args: argparse.Namespace, make_plan: MakePlan) -> int:
    """Submit the missing runs of the plan that `make_plan` builds from arguments and existing runs."""
    name = sweep_name(args)
    check_tags(args.tags, "--tag")
    existing = read_runs(args.runs, name, progress=progress)
    expanded = make_plan(args, existing)
    plan = plan_of(
        args,
        name,
        expanded=expanded,
        command_hashes=command_hashes(with_done_runs(expanded, args.runs), args.runs),
        tags=args.tags,
        note=args.note,
        annotates_runs=args.verb == "run",
    )
    plan = more_repeats.with_rule(plan, args)
    only_shows = args.dry_run or args.test_only or args.memory
    choose = selection.described_scheduler if only_shows else selection.chosen_scheduler
    scheduler = choose(args, existing)
    check_start_from(expanded.runs, {state.config_key for state in existing}, args.runs, scheduler)
    if only_shows:
        from jobs.cli.preview import print_dry_run

        return print_dry_run(args, more_repeats.with_wanted(plan, existing), existing, scheduler)
    actions = plan.decide(existing)
    plan.dependencies(actions, scheduler)  # refused before anything is written
    starting = [action.plan for action in actions if action.submits and action.plan]
    if not args.yes and len(starting) > RUNS_WITHOUT_YES:
        cost = total_cost([cost_bound(run, scheduler) for run in starting])
        raise ConfigError(
            f"{name}: {len(starting):,} runs would start{cost}; more than {RUNS_WITHOUT_YES} "
            "runs need --yes, and --dry-run lists them"
        )
    if plan.possible is not None:
        existing = refresh(existing, scheduler)
        plan = more_repeats.with_wanted(plan, existing, added=plan.report_job is not None)
    return submit_all(args, [(plan, scheduler)])


def plan_of(args: argparse.Namespace, sweep: str, **fields: Any) -> Plan:
    """A plan with the options that `sweep`, `run` and `resume` have."""
    at_once = 1 if args.serial else args.max_running
    expanded, recorded = fields.get("expanded"), fields.get("recorded", ())
    own = [RunDir(args.runs / sweep / run.name) for run in expanded.runs] if expanded else recorded
    return Plan(
        args.runs,
        sweep,
        code_hash(),
        from_scratch=args.from_scratch,
        skip_preflight=args.skip_preflight,
        most_running=at_once,
        after=selection.awaited_runs(args.runs, args.after, own, "--after"),
        after_any=selection.awaited_runs(args.runs, args.after_any, own, "--after-any"),
        **fields,
    )


def cost_bound(run: RunPlan, scheduler: Scheduler) -> dict[str, Any]:
    """Upper bound of the processor time of one attempt: its time limit times its GPUs, or its ranks."""
    resources = run.config.resources
    gpus = resources.nodes * resources.gpus_per_node
    on_gpu = scheduler.uses_gpus(resources.device, gpus)
    hours = (gpus if on_gpu else run.config.world_size) * run.config.job.time_limit_min / 60
    return {"hours": hours, "unit": "GPU-hours" if on_gpu else "CPU rank-hours"}


def total_cost(bounds: Iterable[dict[str, Any]]) -> str:
    """The sum by unit as a part of a sentence: `, at most 12 GPU-hours (...)`. Empty without bounds."""
    hours: dict[str, float] = {}
    for bound in bounds:
        hours[bound["unit"]] = hours.get(bound["unit"], 0.0) + bound["hours"]
    text = " and ".join(
        f"{total:,.0f} {unit}" if total >= 1000 else f"{total:.3g} {unit}" for unit, total in hours.items()
    )
    return f", at most {text} (each attempt until its time limit)" if text else ""


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
            if scheduler is None or args.dry_run:
                actions = plan.decide(refresh_or_warn(plan.states()))
                outcomes.append(Outcome(plan, scheduler, actions))
                for line in excluded_nodes_warning(args.runs, scheduler) if scheduler else ():
                    warn(line)
            else:
                outcomes.append(pipeline.submit(plan, scheduler, report=report, progress=progress, warn=warn))
            if refusal := outcomes[-1].refusal:
                break
    except ConfigError as error:  # such as a lock that another process holds
        refusal = error
    except KeyboardInterrupt:
        print("interrupted: the same command submits the remaining runs", file=sys.stderr)
        raise
    if refusal is None:
        return _print_outcomes(args, outcomes)
    in_part = any(outcome.submitted for outcome in outcomes)
    if isinstance(refusal, ConfigError) and not in_part:
        raise refusal
    message = f"error: {refusal}"
    if isinstance(refusal, SubmitError) and runs_of(args.runs, outcomes[-1].plan.sweep):
        message += f"; list the runs: {PROGRAM} status {outcomes[-1].plan.sweep}{runs_flag(args.runs)}"
    if in_part:
        return _print_outcomes(args, outcomes, message)
    print_error(message)
    return EXIT_RUNS_MISSING


def _print_outcomes(args: argparse.Namespace, outcomes: Sequence[Outcome], refusal: str | None = None) -> int:
    """Print the action on each run; with `--wait`, show the runs until they end. Returns the exit code.

    `refusal` is the reason why further runs were not submitted.
    """
    actions = [action for outcome in outcomes for action in outcome.actions]
    schedulers = list({each.scheduler.name: each.scheduler for each in outcomes if each.scheduler}.values())
    if args.verb == "resume" and not args.runs_given:  # without names, completed runs are not listed
        actions = [action for action in actions if action.kind not in ("up_to_date", "outdated")]
        if not actions:
            print("nothing to resume: no run has failed, stopped, been cancelled or been lost")
            add_json(actions=[])
            return 0
    runs = [RunDir(args.runs / action.sweep / action.name) for action in actions]
    print(_action_table(actions, [each.name for each in schedulers], dry_run=args.dry_run), flush=True)
    if refusal is not None:
        print_error(refusal)
    waits = args.wait and not args.dry_run
    states = _wait(args, runs, schedulers, outcomes) if waits else []
    if not (waits or args.dry_run):
        if _has_active(actions):
            print(f"watch them: {PROGRAM} watch {' '.join(_sweeps(runs))}{runs_flag(args.runs)}")
        for outcome in outcomes:
            for line in [*limit_lines(outcome.plan, outcome.scheduler), *_report_lines(outcome)]:
                print(line)
    rows = [
        {"sweep": action.sweep, "run": action.name, "action": action.kind, "reason": action.reason}
        for action in actions
    ]
    add_json(states or read_states(runs), actions=rows)
    missing = _report_missing(actions) or refusal is not None
    return (follow.exit_code(states) if waits else 0) or (EXIT_RUNS_MISSING if missing else 0)


def _action_table(actions: Sequence[Action], schedulers: Sequence[str], *, dry_run: bool) -> str:
    """One row per run, and the counts of the actions. Names include the sweep if there are several."""
    displayed = _DISPLAYED | (_WOULD if dry_run else {})
    several = len({action.sweep for action in actions}) > 1
    rows = [
        (
            displayed[action.kind],
            f"{action.sweep}/{action.name}" if several else action.name,
            action.job_id or "",
            action.reason,
        )
        for action in actions
    ]
    numbers = Counter(action.kind for action in actions)
    counts = ", ".join(f"{numbers[kind]} {text}" for kind, text in displayed.items() if numbers[kind])
    names = f" (cluster: {', '.join(schedulers)})" if schedulers else ""
    lines = [table(("ACTION", "RUN", "JOB", "REASON"), rows), ""]
    lines.append(f"{count(len(actions), 'run')}: {counts or 'nothing to do'}{names}")
    if numbers["outdated"]:
        kept = "done by other code than the current one, and kept"
        lines.append(f"outdated: {kept}; `clean --stale` moves such runs")
    return "\n".join([*lines, DRY_RUN] if dry_run else lines)


def _report_missing(actions: Sequence[Action]) -> bool:
    """Print the numbers of runs that were blocked, or deferred by a limit on jobs; whether there are any."""
    blocked = [action for action in actions if action.kind == "blocked"]
    if blocked:
        print_error(f"{count(len(blocked), 'run')} blocked, for the reasons in the table")
    deferred = [action for action in actions if action.kind == "deferred"]
    if deferred:
        runs = count(len(deferred), "run")
        print_error(f"{runs} deferred: {deferred[0].reason}; the same command submits them later")
    return bool(blocked or deferred)


def _has_active(actions: Iterable[Action]) -> bool:
    return any(action.submits or action.kind == "in_progress" for action in actions)


def _sweeps(runs: Sequence[RunDir]) -> list[str]:
    return list(dict.fromkeys(run.sweep for run in runs))


def limit_lines(plan: Plan, scheduler: Scheduler | None) -> list[str]:
    """The line that states the limit of runs at a time and its scope; none without a limit."""
    if plan.most_running is None or scheduler is None:
        return []
    if scheduler.one_machine:
        return [f"{scheduler.title} runs one of your jobs at a time, over all sweeps"]
    runs = "one run" if plan.most_running == 1 else f"{plan.most_running} runs"
    return [
        f"at most {runs} of {plan.sweep} at a time, with those submitted before; other sweeps do not count"
    ]


def _report_lines(outcome: Outcome) -> list[str]:
    if isinstance(outcome.report, SubmitError):
        return [f"no job will write the report of {outcome.plan.sweep}: {outcome.report}"]
    if outcome.report and (line := missing()):
        return [f"no report will be written: {line}"]
    page = outcome.plan.root / outcome.plan.sweep / "report" / "report.html"
    return [f"report: {page}, by job {outcome.report} when these runs have ended"] if outcome.report else []


def _wait(
    args: argparse.Namespace,
    runs: list[RunDir],
    schedulers: Sequence[Scheduler],
    outcomes: Sequence[Outcome],
) -> list[RunState]:
    """Show the runs until all have ended. Ctrl-C submits the report jobs, since the runs continue."""
    code = code_hash()  # once: hashing all sources every second would slow runs on this machine
    of_this_host = next((scheduler for scheduler in schedulers if scheduler.one_machine), None)
    polled = follow.PolledRuns(lambda: run_state.read_states(runs, code_hash=code), of_this_host)
    try:
        states = follow.follow(polled, args.runs)
        while added := [each for outcome in outcomes if (each := more_repeats.submit(outcome)).submitted]:
            actions = [action for outcome in added for action in outcome.actions]
            print(_action_table(actions, [], dry_run=False), file=progress_stream(), flush=True)
            runs += [run for outcome in added for run in outcome.runs]
            states = follow.follow(polled, args.runs)
    except KeyboardInterrupt:
        for outcome in () if args.no_report else outcomes:
            if outcome.scheduler is not None:
                with sweep_lock(args.runs / outcome.plan.sweep):
                    for line in _report_lines(pipeline.with_report(outcome)):
                        print(line, file=sys.stderr)
        raise
    if any(_has_active(outcome.actions) for outcome in outcomes):
        for sweep in _sweeps(runs):
            ended = refresh_or_warn(read_runs(args.runs, sweep))
            if any(state.active for state in ended) or report_job.waits_for(args.runs, sweep, ended):
                continue  # other runs of the sweep are active, or a report job calls the hook
            folder = args.runs / sweep
            _call_hook(folder, ended, None, hook.free_record(hook.records_of(folder), "sweep_end-wait"))
    return states


def run_report_job(args: argparse.Namespace, write_report: Callable[[], Path]) -> int:
    """Write the report and call the hook; 1 if a run has failed or the report was not written, except where
    its packages are not installed. Neither if this job adds runs, which another report job follows.

    The scheduler's mail about the job therefore distinguishes a sweep with failed runs.
    """
    folder, page = args.runs / args.sweeps[0], None
    try:
        if report_job.add_runs(folder, args.sweep_end):
            return 0
        if line := missing():
            print(f"no report is written: {line}")
        else:
            page = write_report()
    except ConfigError as error:
        print_error(f"error: {error}")
    except Exception:  # the hook is called all the same
        traceback.print_exc()
    states = refresh_or_warn(read_runs(args.runs, folder.name))
    _call_hook(folder, states, page, hook.records_of(folder) / f"sweep_end-job-{args.sweep_end:04d}.json")
    failed = _failed_runs(states)
    if failed:
        print(f"{count(len(failed), 'run')} failed: {', '.join(state.name for state in failed)}")
    return 1 if failed or (page is None and not missing()) else 0


def _call_hook(folder: Path, states: Sequence[RunState], page: Path | None, record: Path) -> None:
    """Call the hook of the newest submission, if it has one."""
    newest = max(states, key=submission_time, default=None)
    command = hook.command_of(newest.run) if newest is not None else None
    if command is None:
        return
    counts = Counter(state.displayed_state for state in states)
    failed = [
        {"run": state.name, "cause": state.cause, "message": state.message} for state in _failed_runs(states)
    ]
    try:
        problem = hook.call(command, hook.Event("sweep_end", folder, counts, failed, page), record)
    except OSError as error:
        problem = f"job.on_end was not called: {error}"
    if problem is not None:
        print_warning(problem)


def _failed_runs(states: Sequence[RunState]) -> list[RunState]:
    """The runs that have failed. A run that the user cancelled or stopped has not."""
    return [state for state in states if state.displayed_state in ("failed", "lost", "corrupt")]
