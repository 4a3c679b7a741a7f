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
    runs += selection.follow_ups_of(args.runs, runs)
    states = selection.with_tags(selection.read_states(runs), args.tags)
    return submitting.submit_all(args, _plans(args, states))


def _plans(args: argparse.Namespace, states: Sequence[RunState]) -> Iterator[tuple[Plan, Scheduler | None]]:
    """The runs by sweep and recorded scheduler, each group with the scheduler to resume it on.

    The scheduler is None for a group of completed runs, for which it need not answer.
    """
    import itertools

    from jobs.cli import selection, submitting

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
                chosen[cluster] = selection.scheduler_to_resume(args, cluster or None, same)
            scheduler = chosen[cluster]
        recorded = [state.run for state in group]
        yield submitting.plan_of(args, sweep, recorded=recorded, named=named), scheduler
