"""`report`: the efficiency report of one sweep, or of several together."""

from __future__ import annotations

import argparse
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.cli import run_lookup
from jobs.cli.status_table import print_json
from jobs.status.gpu_hours import note
from jobs.status.run_state import runs_of


def run(args: argparse.Namespace) -> int:
    sweeps = [run_lookup.one_sweep(args.runs, word) for word in dict.fromkeys(args.sweeps)] or [
        newest_sweep(args.runs)
    ]
    if len(sweeps) > 1 and args.out is None:
        raise ConfigError("--out is needed for several sweeps: which folder takes their report")
    out = args.out or args.runs / sweeps[0] / "report"
    # numpy, pandas and matplotlib: seconds, so not before the names are known good
    from analysis import report

    folders = [args.runs / sweep for sweep in sweeps]
    report.check(folders, out, base=args.base)  # a base or a folder that cannot be: nothing is written
    note(run for sweep in sweeps for run in runs_of(args.runs, sweep))
    page = report.write(folders, out, base=args.base)
    if args.json:
        print_json(read_json(page.with_name("report.json")))
    else:
        print(f"report of {', '.join(sweeps)}: {page}")
    return 0


def newest_sweep(root: Path) -> str:
    """The sweep that was submitted to last."""
    last = {
        sweep: max(_submitted(run) for run in runs)
        for sweep in run_lookup.sweeps(root)
        if (runs := runs_of(root, sweep))
    }
    if not last:
        raise ConfigError(f"no runs in {root} yet: python submit.py sweep --nodes 1 2 4")
    return max(last, key=lambda sweep: last[sweep])


def _submitted(run: RunDir) -> float:
    """When a run was last submitted; planned, where it never was."""
    announced = (path.stat().st_mtime for path in run.submissions.glob("*.intent.json"))
    return max(announced, default=run.run_json.stat().st_mtime)
