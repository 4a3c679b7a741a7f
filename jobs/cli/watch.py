"""`watch`: show runs until all have ended."""

from __future__ import annotations

import argparse

from disttrain.records.collect_provenance import code_hash
from jobs.cli import follow, run_lookup
from jobs.cli.command_output import add_json
from jobs.cli.polling import PolledRuns
from jobs.cli.selection import by_state, with_tags
from jobs.cli.status import read_sweeps


def run(args: argparse.Namespace) -> int:
    is_shown = by_state(args)
    sweeps = [run_lookup.find_sweep(args.runs, name) for name in args.sweeps]
    code = code_hash()  # once: hashing all sources every second would slow runs on this machine
    tagged = with_tags(read_sweeps(args.runs, sweeps, code), args.tags)
    sweeps = sweeps or list(dict.fromkeys(state.sweep for state in tagged if state.active))
    if not sweeps:
        print("no run is waiting or running: submit.py status lists all runs")
        return 0
    runs = PolledRuns(lambda: with_tags(read_sweeps(args.runs, sweeps, code), args.tags))
    add_json(follow.follow(runs, args.runs, is_shown=is_shown))
    return 0
