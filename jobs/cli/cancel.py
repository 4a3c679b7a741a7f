"""`cancel`: end runs that wait or run. What they wrote stays, and `resume` takes them up again.

With `--graceful` a run at work is asked by a `STOP` file to save and leave at its next step, wherever it is.
"""

from __future__ import annotations

import argparse
import sys

from disttrain.errors import ConfigError
from jobs.cli import run_lookup
from jobs.cli.status_table import as_json, print_json
from jobs.core.processes import host
from jobs.schedulers.select import choose
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_state
from jobs.submission.actions import cancel


def run(args: argparse.Namespace) -> int:
    runs = run_lookup.several(args.runs, args.runs_given)
    active = [state for state in map(read_state, runs) if state.active]
    asked = [state for state in active if args.graceful and state.state == "running"]
    for state in asked:
        state.run.stop.touch()
    active = [state for state in active if state not in asked]
    beyond = {state.run.path: why for state in active if (why := _why_not_from_here(state))}
    hit: list[RunState] = []
    for name in dict.fromkeys(state.cluster for state in active if state.cluster):
        here = [state for state in active if state.cluster == name and state.run.path not in beyond]
        if not here:
            continue
        try:
            cluster = choose(name)
            hit += cancel(refresh(here, cluster), cluster)
        except ConfigError as error:  # the other cluster's runs can still be ended
            why = str(error).removeprefix(f"--cluster={name}: ")
            beyond |= dict.fromkeys((state.run.path for state in here), f"not cancelled: {why}")
    for state in active:
        if state.run.path in beyond:
            print(f"{run_lookup.label(state.run)}: {beyond[state.run.path]}", file=sys.stderr)
    if args.json:
        print_json([as_json(state) for state in [*asked, *hit]])
    else:
        _tell(asked, hit, others=len(runs) - len(asked) - len(hit) - len(beyond), beyond=len(beyond))
    return 1 if beyond else 0


def _why_not_from_here(state: RunState) -> str | None:
    """A local run belongs to the host that started it, one started by hand to who did."""
    if not state.journaled:
        return "started by hand: end it where it runs"
    at = str(state.job_id).rpartition(":")[0]
    if state.cluster == "local" and state.job_id and at != host():
        return f"runs on {at}: cancel it there"
    return None


def _tell(asked: list[RunState], hit: list[RunState], *, others: int, beyond: int) -> None:
    for state in asked:
        print(f"stopping  {run_lookup.label(state.run)}: it saves and leaves at its next step")
    for state in hit:
        print(
            f"{'ending' if state.claimed else 'cancelled'}  {run_lookup.label(state.run)} (was {state.state})"
        )
    if not asked and not hit and not beyond:
        print("nothing to cancel: none of these runs is waiting or running")
    elif others:
        print(f"{others} more had ended or never started")
