"""`cancel`: end queued and running runs. Their files stay, and `resume` continues them.

The command waits for the end of the jobs, so that every later command finds the runs cancelled.

`--graceful` writes a `STOP` file: the trainer of a running run saves a checkpoint at its next step and ends.
A script gets its stop signal.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from disttrain.errors import ConfigError
from jobs.cli import run_lookup, target
from jobs.cli.command_output import add_json, print_error
from jobs.cli.formatting import count
from jobs.cli.progress_bar import progress
from jobs.core.processes import host
from jobs.schedulers.base import Scheduler
from jobs.schedulers.select import NAMES, scheduler_named
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_state, read_states
from jobs.submission.cancel import await_end, cancel_runs

END_TIMEOUT_S = 60.0
"""Longest wait for the end of the jobs, in seconds: twice the usual time from SIGTERM to SIGKILL."""


def run(args: argparse.Namespace) -> int:
    runs = run_lookup.find_runs(args.runs, args.runs_given)
    active = [state for state in read_states(runs, progress=progress) if state.active]
    stopping = [state for state in active if args.graceful and state.state == "running"]
    _check_access(stopping)
    if not args.dry_run:
        for state in stopping:
            state.run.stop.touch()
    active = [state for state in active if state not in stopping]
    failures = {state.run.path: reason for state in active if (reason := _uncancellable_reason(state))}
    cancelled, ended = _cancel(active, failures, dry_run=args.dry_run)
    for state in active:
        if state.run.path in failures:
            print_error(f"{run_lookup.run_label(state.run)}: {failures[state.run.path]}")
    for state in ended.values():
        if state.active:
            print_error(f"{run_lookup.run_label(state.run)}: its job is still ending; `status` shows its end")
    if args.json:
        failed = [state for state in active if state.run.path in failures]
        add_json(
            [*stopping, *(cancelled if args.dry_run else ended.values()), *failed],
            stopping=[run_lookup.run_label(state.run) for state in stopping],
            cancelled=[run_lookup.run_label(state.run) for state in cancelled],
        )
    else:
        inactive = len(runs) - len(stopping) - len(cancelled) - len(failures)
        if args.dry_run:
            _print_dry_run(stopping, cancelled)
        else:
            _print_cancelled(stopping, cancelled, ended)
        if not stopping and not cancelled and not failures:
            print("nothing to cancel: none of these runs is queued or running")
        elif inactive:
            print(f"{inactive} more had ended or never started")
    return 1 if failures or any(state.active for state in ended.values()) else 0


def _cancel(
    active: list[RunState], failures: dict[Path, str], *, dry_run: bool
) -> tuple[list[RunState], dict[Path, RunState]]:
    """The runs whose job was cancelled, and their states after its end. Adds to `failures`, by run."""
    cancelled: list[RunState] = []
    ended: dict[Path, RunState] = {}
    for name in dict.fromkeys(state.cluster for state in active if state.cluster):
        here = [state for state in active if state.cluster == name and state.run.path not in failures]
        if not here:
            continue
        try:
            scheduler = target.available_scheduler(name)
            hit, refused = cancel_runs(refresh(here, scheduler), scheduler, dry_run=dry_run)
            cancelled += hit
            failures |= {path: f"not cancelled: {reason}" for path, reason in refused.items()}
            if not dry_run:
                ended |= {state.run.path: state for state in _await_end(hit, scheduler)}
        except ConfigError as error:  # the runs of another scheduler can still be cancelled
            failures |= dict.fromkeys((state.run.path for state in here), f"not cancelled: {error}")
    return cancelled, ended


def _check_access(stopping: Sequence[RunState]) -> None:
    """Raise `ConfigError` unless this user may write the `STOP` files of all runs."""
    denied = [state.run for state in stopping if not os.access(state.run.path, os.W_OK)]
    if denied:
        names = ", ".join(map(run_lookup.run_label, denied))
        raise ConfigError(f"--graceful: no write access to {str(denied[0].path)!r}: cannot stop {names}")


def _await_end(cancelled: list[RunState], scheduler: Scheduler) -> list[RunState]:
    """The states after the end of the jobs, or at Ctrl-C."""

    def notify(active: int) -> None:
        runs = count(active, "run")
        print(
            f"waiting at most {END_TIMEOUT_S:g} s for {runs} to end; Ctrl-C stops waiting, not the end",
            file=sys.stderr,
        )

    try:
        return await_end(cancelled, scheduler, END_TIMEOUT_S, notify)
    except KeyboardInterrupt:
        return [read_state(state.run) for state in cancelled]


def _uncancellable_reason(state: RunState) -> str | None:
    """Why this process cannot cancel the run: another host, or a user's torchrun, started it."""
    if not state.journaled:
        return "started by hand: end it on its host"
    if state.cluster not in NAMES or state.job_id is None:
        return None
    only = scheduler_named(state.cluster).host_of(state.job_id)
    return f"runs on {only}: cancel it on that host" if only not in (None, host()) else None


def _print_cancelled(
    stopping: list[RunState], cancelled: list[RunState], ended: dict[Path, RunState]
) -> None:
    for state in stopping:
        print(f"stopping  {run_lookup.run_label(state.run)}: it may save first; `status` shows its end")
    for state in cancelled:
        if not ended[state.run.path].active:
            verb = ended[state.run.path].displayed_state
            print(f"{verb}  {run_lookup.run_label(state.run)} (was {state.state})")


def _print_dry_run(stopping: list[RunState], cancelled: list[RunState]) -> None:
    for verb, states in (("stop", stopping), ("cancel", cancelled)):
        for state in states:
            print(f"would {verb}  {run_lookup.run_label(state.run)} (is {state.state})")
