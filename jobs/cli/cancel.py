"""`cancel`: end runs that wait or run. What they wrote stays, and `resume` takes them up again.

With `--graceful` a run at work is asked by a `STOP` file to save and leave at its next step, wherever it is.
"""

from __future__ import annotations

import argparse
import sys

from disttrain.rundir import RunDir
from jobs.cli import find
from jobs.cli.render import as_json, print_json
from jobs.cluster import choose
from jobs.processes import host
from jobs.reconcile import cancel, refresh
from jobs.state import RunState, read_state


def run(args: argparse.Namespace) -> int:
    runs = find.several(args.runs, args.runs_given)
    active = [state for state in map(read_state, runs) if state.active]
    asked = [state for state in active if args.graceful and state.state == "running"]
    for state in asked:
        state.run.stop.touch()
    active = [state for state in active if state not in asked]
    elsewhere = [state for state in active if _is_elsewhere(state)]
    hit: list[RunState] = []
    for name in dict.fromkeys(state.cluster for state in active if state.cluster):
        cluster = choose(name)
        here = [state for state in active if state.cluster == name and state not in elsewhere]
        hit += cancel(refresh(here, cluster), cluster)
    if args.json:
        print_json([as_json(state) for state in [*asked, *hit]])
    else:
        _tell(asked, hit, runs, elsewhere)
    return 1 if elsewhere else 0


def _is_elsewhere(state: RunState) -> bool:
    """Whether only another machine can end it: a local run belongs to the host that started it."""
    return state.cluster == "local" and bool(state.job_id) and str(state.job_id).rpartition(":")[0] != host()


def _tell(asked: list[RunState], hit: list[RunState], runs: list[RunDir], elsewhere: list[RunState]) -> None:
    for state in asked:
        print(f"stopping  {find.label(state.run)}: it saves and leaves at its next step")
    for state in hit:
        print(f"{'ending' if state.claimed else 'cancelled'}  {find.label(state.run)} (was {state.state})")
    for state in elsewhere:
        at = str(state.job_id).rpartition(":")[0]
        print(f"{find.label(state.run)} runs on {at}: cancel it there", file=sys.stderr)
    others = len(runs) - len(asked) - len(hit) - len(elsewhere)
    if not asked and not hit and not elsewhere:
        print("nothing to cancel: none of these runs is waiting or running")
    elif others:
        print(f"{others} more had ended or never started")
