"""`resume`: submit again what failed, stopped, was cancelled or got lost, from the runs' own `run.json`.

A run goes on from its newest checkpoint, if it has one.
"""

from __future__ import annotations

import argparse
import itertools

from disttrain.provenance import code_hash
from disttrain.rundir import RunDir
from jobs.cli import find, fresh, place
from jobs.cluster import SubmitError
from jobs.reconcile import Action, resume_actions, sweep_lock
from jobs.refresh import refresh
from jobs.submission import carry_out


def run(args: argparse.Namespace) -> int:
    words = args.runs_given or find.sweeps(args.runs)
    runs = find.several(args.runs, words)
    named = find.named(args.runs, args.runs_given)
    cluster = place.cluster_for(args, place.read(runs))
    done: list[tuple[RunDir, Action]] = []
    reports: list[str] = []
    for sweep, members in itertools.groupby(sorted(runs, key=lambda run: run.sweep), lambda run: run.sweep):
        group = list(members)
        with sweep_lock(args.runs / sweep):
            states = refresh(place.read(group), cluster, receipts=True, say=fresh.warn)
            actions = resume_actions(states, code_hash(), named)
            try:
                actions = carry_out(actions, cluster, args.runs)
            except SubmitError as error:
                return place.refused(error, sweep)
            if not args.wait:
                reports += place.report_later(args, cluster, sweep, actions)
        done += zip(group, actions, strict=True)
    if not args.runs_given:  # asked for in general: what is done needs no word
        done = [(run, action) for run, action in done if action.kind not in ("keep", "stale")]
    if not done and not args.json:
        print("nothing to resume: no run failed, was cancelled or got lost")
        return 0
    return place.tell([action for _, action in done], [run for run, _ in done], cluster, args, reports)
