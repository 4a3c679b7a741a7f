"""`watch`: runs as they go, until all have ended."""

from __future__ import annotations

import argparse
import sys

from disttrain.records.collect_provenance import code_hash
from jobs.cli import follow, run_lookup
from jobs.cli.polling import Watched
from jobs.cli.status import read
from jobs.cli.status_table import as_json, print_json


def run(args: argparse.Namespace) -> int:
    words = [run_lookup.one_sweep(args.runs, word) for word in args.sweeps]
    code = code_hash()  # once: hashing all sources each second would disturb the runs that are timed
    words = words or list(dict.fromkeys(state.sweep for state in read(args.runs, [], code) if state.active))
    if not words:
        print("[]" if args.json else "no run is waiting or running: submit.py status shows what there is")
        return 0
    watched = Watched(lambda: read(args.runs, words, code))
    states = follow.follow(watched, args.runs, out=sys.stderr if args.json else sys.stdout)
    if args.json:
        print_json([as_json(state) for state in states])
    return 0
