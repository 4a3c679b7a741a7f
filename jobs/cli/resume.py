"""`resume`: submit failed, stopped, cancelled and lost runs again, as their `run.json` records them.

A run continues from its newest checkpoint, if it has one. Runs of this machine stay on this machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jobs.cli import options

if TYPE_CHECKING:
    from jobs.schedulers.interface import Scheduler
    from jobs.status.run_state import RunState
    from jobs.submission.pipeline import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(parser, actions=options.ACTIONS)
    options.value(parser, "runs_given", "RUN", "runs or whole sweeps (all)", nargs="*")
    options.flag(parser, "--dry-run", "print the runs to submit, change nothing")
    options.tag_filter(parser)
    options.scheduler(parser)
    options.execution(parser)


def run(args: argparse.Namespace) -> int:
    from jobs.cli import selection, submitting

    runs = selection.find_runs(args.runs, args.runs_given or selection.sweep_names(args.runs))
    plans = _plans(args, selection.with_tags(selection.read_states(runs), args.tags))
    return _preview(args, plans) if args.dry_run else submitting.submit_all(args, plans)


def _preview(args: argparse.Namespace, plans: Iterator[tuple[Plan, Scheduler | None]]) -> int:
    from jobs.cli import submitting
    from jobs.cli.command_output import print_warning
    from jobs.status.refresh import refresh
    from jobs.submission.pipeline import Outcome
    from jobs.submission.warnings import excluded_nodes_warning

    outcomes = []
    for plan, scheduler in plans:
        states = plan.states()
        if scheduler is not None:
            states = refresh(states, scheduler, warn=print_warning)
            for line in excluded_nodes_warning(args.runs, scheduler):
                print_warning(line)
        outcomes.append(Outcome(plan, scheduler, plan.decide(states)))
    return submitting.print_outcomes(args, outcomes)


def _plans(args: argparse.Namespace, states: Sequence[RunState]) -> Iterator[tuple[Plan, Scheduler | None]]:
    """The runs by sweep and recorded scheduler, each group with the scheduler to resume it on.

    The scheduler is None for a group of completed runs, for which it need not answer.
    """
    import itertools

    from disttrain.records.collect_provenance import code_hash
    from jobs.cli import selection, submitting, target
    from jobs.submission.pipeline import Plan

    def key(state: RunState) -> tuple[str, str]:
        return state.sweep, state.cluster or ""

    chosen: dict[str, Scheduler] = {}
    named = selection.runs_given_by_name(args.runs, args.runs_given)
    for (sweep, cluster), members in itertools.groupby(sorted(states, key=key), key):
        group = list(members)
        scheduler = None
        if any(state.state != "done" for state in group):
            if cluster not in chosen:
                same = [state for state in states if (state.cluster or "") == cluster]
                chosen[cluster] = target.scheduler_to_resume(args, cluster or None, same)
            scheduler = chosen[cluster]
        recorded = [state.run for state in group]
        yield (
            Plan(args.runs, sweep, code_hash(), recorded=recorded, named=named, **submitting.options(args)),
            scheduler,
        )
