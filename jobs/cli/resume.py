"""`resume`: submit failed, stopped, cancelled and lost runs again, as their `run.json` records them.

A run continues from its newest checkpoint, if it has one. Runs of this machine stay on this machine. `resume`
ends at the first refusal of the scheduler. If it has submitted a job by then, it prints the actions on the
sweeps so far, with that of the refusal, then the refusal.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash
from disttrain.records.run_directory import RunDir
from jobs.cli import max_running, run_lookup, submitting, target
from jobs.cli.action_table import action_table, actions_json, report_missing
from jobs.cli.command_output import add_json, print_warning
from jobs.cli.progress_bar import progress
from jobs.cli.selection import with_tags
from jobs.core.sweep_lock import sweep_lock
from jobs.schedulers.base import Scheduler, SubmitError
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_runs
from jobs.submission.after_refusal import actions_after_refusal, next_submissions
from jobs.submission.choose_actions import Action, resume_actions
from jobs.submission.job_chains import JobChains
from jobs.submission.submit import carry_out
from jobs.submission.warnings import excluded_nodes_warning


def run(args: argparse.Namespace) -> int:
    names = args.runs_given or run_lookup.sweep_names(args.runs)
    runs = run_lookup.find_runs(args.runs, names)
    states = with_tags(submitting.read_states(runs), args.tags)
    resumed = _Resumed(run_lookup.runs_given_by_name(args.runs, args.runs_given))
    refusal = None
    try:
        for sweep, group, scheduler in _groups(args, states):
            _resume_group(args, sweep, group, scheduler, resumed)
    except SubmitError as error:
        if not resumed.submitted:
            return submitting.print_refusal(error, args.runs, resumed.sweep)
        refusal = submitting.refusal_line(error, args.runs, resumed.sweep)
    except ConfigError as error:  # such as a lock that another process holds
        if not resumed.submitted:
            raise
        refusal = str(error)
    done, schedulers = resumed.actions, list(resumed.schedulers.values())
    if not args.runs_given:  # without names, completed runs are not listed
        done = [(run, action) for run, action in done if action.kind not in ("up_to_date", "outdated")]
    if not done and not args.json:
        print("nothing to resume: no run has failed, stopped, been cancelled or been lost")
        return 0
    actions, there = [action for _, action in done], [run for run, _ in done]
    if not args.dry_run:
        return submitting.print_actions_and_wait(
            actions, there, schedulers, args, resumed.reports, refusal=refusal
        )
    if args.json:
        add_json(submitting.read_states(there), actions=actions_json(actions))
    else:
        print(action_table(actions, [scheduler.name for scheduler in schedulers], dry_run=True))
    return report_missing(actions)


@dataclass
class _Resumed:
    """Actions of the groups so far. `named` are the folders of runs that are named themselves."""

    named: set[Path]
    sweep: str = ""
    """The sweep of the group at hand."""
    schedulers: dict[str, Scheduler] = field(default_factory=dict)
    actions: list[tuple[RunDir, Action]] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    """Lines on the limit of runs at a time and on the report jobs."""

    @property
    def submitted(self) -> bool:
        return any(action.job_id for _, action in self.actions)

    def add(
        self, args: argparse.Namespace, group: list[RunDir], actions: list[Action], scheduler: Scheduler
    ) -> None:
        """Add the actions on runs of one sweep, and submit its report job. The caller holds its lock."""
        self.actions += zip(group, actions, strict=True)
        if not args.wait:
            self.reports += submitting.submit_report_job(args, scheduler, self.sweep, actions)


def _resume_group(
    args: argparse.Namespace, sweep: str, group: list[RunDir], scheduler: Scheduler | None, resumed: _Resumed
) -> None:
    """Submit the runs of one sweep and scheduler, and add the actions to `resumed`.

    Raises `SubmitError` and `ConfigError`.
    """
    resumed.sweep = sweep
    if scheduler is None:
        actions = resume_actions(submitting.read_states(group), code_hash())
        resumed.actions += zip(group, actions, strict=True)
        return
    if scheduler.name not in resumed.schedulers:
        for line in excluded_nodes_warning(args.runs, scheduler):
            print_warning(line)
    resumed.schedulers[scheduler.name] = scheduler
    if args.dry_run:
        states = refresh(submitting.read_states(group), scheduler, warn=print_warning)
        actions = resume_actions(states, code_hash(), resumed.named, from_scratch=args.from_scratch)
        resumed.actions += zip(group, actions, strict=True)
        return
    with sweep_lock(args.runs / sweep):
        states = refresh(submitting.read_states(group), scheduler, receipts=True, warn=print_warning)
        resumed.reports += max_running.limit_line(args, sweep, scheduler)
        actions = resume_actions(states, code_hash(), resumed.named, from_scratch=args.from_scratch)
        numbers = next_submissions(group)
        try:
            actions = carry_out(
                actions,
                scheduler,
                args.runs,
                chains=_chains(args, sweep, scheduler),
                skip_preflight=args.skip_preflight,
                progress=progress,
            )
        except (SubmitError, ConfigError) as error:
            actions = actions_after_refusal(actions, group, numbers, error)
            if any(action.job_id for action in actions):
                resumed.add(args, group, actions, scheduler)
            raise
        resumed.add(args, group, actions, scheduler)


def _chains(args: argparse.Namespace, sweep: str, scheduler: Scheduler) -> JobChains | None:
    """The chains of the whole sweep, of which the command may resume some runs."""
    if max_running.limit_given(args) is None:
        return None
    states = refresh(read_runs(args.runs, sweep, progress=progress), scheduler, receipts=True)
    return max_running.job_chains(args, states, scheduler)


def _groups(
    args: argparse.Namespace, states: Sequence[RunState]
) -> Iterator[tuple[str, list[RunDir], Scheduler | None]]:
    """The runs by sweep and recorded scheduler, each group with the scheduler to resume it on.

    The scheduler is None for a group of completed runs, for which it need not answer.
    """

    def key(state: RunState) -> tuple[str, str]:
        return state.sweep, state.cluster or ""

    chosen: dict[str, Scheduler] = {}
    for (sweep, cluster), members in itertools.groupby(sorted(states, key=key), key):
        group = list(members)
        if all(state.state == "done" for state in group):
            yield sweep, [state.run for state in group], None
            continue
        if cluster not in chosen:
            same = [state for state in states if (state.cluster or "") == cluster]
            chosen[cluster] = target.scheduler_to_resume(args, cluster or None, same)
        yield sweep, [state.run for state in group], chosen[cluster]
