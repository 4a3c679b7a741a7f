"""`watch`: show runs until all have ended."""

from __future__ import annotations

import argparse

from jobs import PROGRAM
from jobs.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(parser)
    options.value(parser, "sweeps", "SWEEP", "sweeps to watch (those with active runs)", nargs="*")
    options.run_filter(parser)


def run(args: argparse.Namespace) -> int:
    from disttrain.records.collect_provenance import code_hash
    from jobs.cli import follow, selection
    from jobs.cli.command_output import add_json
    from jobs.status.run_folders import subfolders
    from jobs.status.run_state import RunState, read_runs

    is_shown = selection.by_state(args)
    sweeps = [selection.find_sweep(args.runs, name) for name in dict.fromkeys(args.sweeps)]
    code = code_hash()  # once: hashing all sources every second would slow runs on this machine

    def read() -> list[RunState]:
        names = sweeps or subfolders(args.runs)
        states = [state for name in names for state in read_runs(args.runs, name, code_hash=code)]
        return selection.with_tags(states, args.tags)

    sweeps = sweeps or list(dict.fromkeys(state.sweep for state in read() if state.active))
    if not sweeps:
        print(f"no run is waiting or running: {PROGRAM} status lists all runs")
        return 0
    add_json(follow.follow(follow.PolledRuns(read), args.runs, is_shown=is_shown))
    return 0
