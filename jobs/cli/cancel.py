"""`cancel`: end queued and running runs. Their files stay, and `resume` continues them.

The command waits for the end of the jobs, so that every later command finds the runs cancelled.

`--graceful` writes a `STOP` file: the trainer of a running run saves a checkpoint at its next step and ends.
A script gets its stop signal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobs.cli import options

if TYPE_CHECKING:
    from pathlib import Path

    from jobs.schedulers.interface import Scheduler
    from jobs.status.run_state import RunState

END_TIMEOUT_S = 60.0
"""Longest wait for the end of the jobs, in seconds: twice the usual time from SIGTERM to SIGKILL."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(
        parser,
        cancelled="runs whose jobs were cancelled",
        stopping="`--graceful`: runs that will save a checkpoint and end",
    )
    options.value(parser, "runs_given", "RUN", "runs or whole sweeps", nargs="+")
    options.flag(parser, "--graceful", "let running runs save a checkpoint and end")
    options.flag(parser, "--dry-run", "print the runs to end, change nothing")


def run(args: argparse.Namespace) -> int:
    from jobs.cli import selection
    from jobs.cli.command_output import add_json, print_error

    runs = selection.find_runs(args.runs, args.runs_given)
    active = [state for state in selection.read_states(runs) if state.active]
    stopping = [state for state in active if args.graceful and state.state == "running"]
    if not args.dry_run:
        _stop(stopping)
    active = [state for state in active if state not in stopping]
    cancelled, ended, failures = _end(active, dry_run=args.dry_run)
    others = [run for run in runs if all(run != state.run for state in stopping)]
    late = [run for run in selection.follow_ups_of(args.runs, others) if run not in runs]
    # until its end, a run adds some
    following = [state for state in selection.read_states(late) if state.active]
    of_late = _end(following, dry_run=args.dry_run)
    runs, active, failures = [*runs, *late], [*active, *following], failures | of_late[2]
    cancelled, ended = [*cancelled, *of_late[0]], [*ended, *of_late[1]]
    failed = [state for state in active if state.run.path in failures]
    for state in failed:
        print_error(f"{state.label}: {failures[state.run.path]}")
    for state in stopping:
        print(
            f"would stop  {state.label} (is {state.state})"
            if args.dry_run
            else f"stopping  {state.label}: it may save first; `status` shows its end"
        )
    for before, now in zip(cancelled, ended, strict=True):
        if args.dry_run:
            print(f"would cancel  {now.label} (is {now.state})")
        elif now.active:
            print_error(f"{now.label}: its job is still ending; `status` shows its end")
        else:
            print(f"{now.displayed_state}  {now.label} (was {before.state})")
    add_json(
        [*stopping, *ended, *failed],
        stopping=[state.label for state in stopping],
        cancelled=[state.label for state in cancelled],
    )
    inactive = len(runs) - len(stopping) - len(cancelled) - len(failed)
    if inactive == len(runs):
        print("nothing to cancel: none of these runs is queued or running")
    elif inactive:
        print(f"{inactive} more had ended or never started")
    return 1 if failed or (not args.dry_run and any(state.active for state in ended)) else 0


def _end(
    active: Sequence[RunState], *, dry_run: bool
) -> tuple[list[RunState], list[RunState], dict[Path, str]]:
    """The runs whose jobs were cancelled, their states after the end, and why the others go on, by folder."""
    from disttrain.errors import ConfigError
    from jobs.cli import selection
    from jobs.status.refresh import refresh
    from jobs.submission.cancel import cancel_runs

    failures = {state.run.path: reason for state in active if (reason := _uncancellable_reason(state))}
    cancelled: list[RunState] = []
    ended: list[RunState] = []
    left = [state for state in active if state.run.path not in failures]
    for name in dict.fromkeys(state.cluster for state in left if state.cluster):
        here = [state for state in left if state.cluster == name]
        try:
            scheduler = selection.available_scheduler(name)
            hit, refused = cancel_runs(refresh(here, scheduler), scheduler, dry_run=dry_run)
        except ConfigError as error:  # the runs of another scheduler can still be cancelled
            hit, refused = [], dict.fromkeys((state.run.path for state in here), str(error))
        failures |= {path: f"not cancelled: {reason}" for path, reason in refused.items()}
        cancelled += hit
        ended += _await_end(hit, scheduler) if hit and not dry_run else hit
    return cancelled, ended, failures


def _stop(states: Sequence[RunState]) -> None:
    """Write the `STOP` file of each run. Raises `ConfigError` unless this user may write all of them."""
    import os

    from disttrain.errors import ConfigError

    denied = next((state for state in states if not os.access(state.run.path, os.W_OK)), None)
    if denied is not None:
        raise ConfigError(f"--graceful: no write access to {str(denied.run.path)!r}: nothing is stopped")
    for state in states:
        state.run.stop.touch()


def _uncancellable_reason(state: RunState) -> str | None:
    """Why this process cannot cancel the run: another host, or a user's torchrun, started it."""
    from jobs.core.processes import host
    from jobs.schedulers import names
    from jobs.schedulers.select import scheduler_named

    if not state.journaled:
        return "started by hand: end it on its host"
    if state.cluster not in names() or state.job_id is None:
        return None
    only = scheduler_named(state.cluster).host_of(state.job_id)
    return None if only in (None, host()) else f"runs on {only}: cancel it on that host"


def _await_end(cancelled: list[RunState], scheduler: Scheduler) -> list[RunState]:
    """The states after the end of the jobs, or at Ctrl-C."""
    from jobs.cli.formatting import count
    from jobs.status.run_state import read_state
    from jobs.submission.cancel import await_end

    def notify(active: int) -> None:
        within = f"waiting at most {END_TIMEOUT_S:g} s for {count(active, 'run')} to end"
        print(f"{within}; Ctrl-C stops waiting, not the end", file=sys.stderr)

    try:
        return await_end(cancelled, scheduler, END_TIMEOUT_S, notify)
    except KeyboardInterrupt:
        return [read_state(state.run) for state in cancelled]
