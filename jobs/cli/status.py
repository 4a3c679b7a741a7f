"""`status`: what became of each run, from its files and, for jobs they show, from Slurm."""

from __future__ import annotations

import argparse
from pathlib import Path

from disttrain.records.collect_provenance import code_hash
from jobs.cli import run_lookup
from jobs.cli.polling import fresh
from jobs.cli.status_table import as_json, print_json, status_table, tally
from jobs.status.run_state import RunState, read_runs


def run(args: argparse.Namespace) -> int:
    states = fresh(read(args.runs, args.sweeps, code_hash()))
    if args.long and states:
        return _long(states, args.json)
    if args.json:
        print_json([as_json(state) for state in states])
    elif not states:
        print(f"no runs in {args.runs} yet: python submit.py sweep --nodes 1 2 4")
    else:
        print(status_table(states))
        print(f"\n{tally(states)}")
    return 0


def _long(states: list[RunState], as_document: bool) -> int:
    from jobs.cli import usage_table

    if as_document:
        runs, sweeps = usage_table.describe(states)
        rows = [as_json(state) | {"usage": each} for state, each in zip(states, runs, strict=True)]
        print_json({"runs": rows, "sweeps": sweeps})
    else:
        print(f"{usage_table.as_text(states)}\n\n{tally(states)}")
    return 0


def read(root: Path, words: list[str], code: str) -> list[RunState]:
    """The runs of the named sweeps, or of all, by their files; stale if done by code other than `code`."""
    names = list(dict.fromkeys(run_lookup.one_sweep(root, word) for word in words))
    if not names:
        return read_runs(root, code_hash=code)
    return [state for name in names for state in read_runs(root, name, code_hash=code)]
