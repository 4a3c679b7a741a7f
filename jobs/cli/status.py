"""`status`: what became of each run, from its files alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from disttrain.provenance import code_hash
from jobs.cli import find
from jobs.cli.render import as_json, print_json, status_table, tally
from jobs.state import RunState, read_runs


def run(args: argparse.Namespace) -> int:
    states = read(args.runs, args.sweeps, code_hash())
    if args.json:
        print_json([as_json(state) for state in states])
    elif not states:
        print(f"no runs in {args.runs} yet: python submit.py sweep --nodes 1 2 4")
    else:
        print(status_table(states))
        print(f"\n{tally(states)}")
    return 0


def read(root: Path, words: list[str], code: str) -> list[RunState]:
    """The runs of the named sweeps, or of all; those done by code other than `code` are stale."""
    names = list(dict.fromkeys(find.one_sweep(root, word) for word in words))
    if not names:
        return read_runs(root, code_hash=code)
    return [state for name in names for state in read_runs(root, name, code_hash=code)]
