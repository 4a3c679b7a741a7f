"""`status`: the state of each run, from its files and from the scheduler of its job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash
from jobs.cli import run_lookup
from jobs.cli.command_output import add_json, print_warning
from jobs.cli.polling import refresh_or_warn
from jobs.cli.progress_bar import progress
from jobs.cli.selection import by_state, with_tags
from jobs.cli.status_table import state_counts, status_table, sweep_table, throughput_basis
from jobs.cli.terminal import has_colour
from jobs.status.run_folders import runs_below, runs_of, subfolders
from jobs.status.run_state import RunState, read_runs, read_states


def run(args: argparse.Namespace) -> int:
    is_selected = by_state(args)
    if args.sweeps:
        runs = [run for sweep in _chosen(args.runs, args.sweeps) for run in runs_of(args.runs, sweep)]
    else:
        runs = runs_below(args.runs, print_warning)
    every = read_states(runs, code_hash=code_hash(), progress=progress)
    with_tags(every, args.tags)  # an unknown tag is refused before the scheduler is queried
    every = refresh_or_warn(every)
    states = [state for state in with_tags(every, args.tags) if is_selected(state)]
    if args.csv is not None or args.parquet is not None:
        return _write_table(args, states)
    if args.long and states:
        return _print_gpu_hours(states, args.json)
    if args.json:
        add_json(states)
    elif not every:
        print(f"no runs in {args.runs} yet: python submit.py sweep --nodes 1 2 4")
    elif not states:
        print(f"none of {state_counts(every)}")
    else:
        sweeps = {state.sweep for state in states}
        summary = sweep_table([state for state in every if state.sweep in sweeps])
        coloured = has_colour(sys.stdout)
        basis = throughput_basis(states)
        print(summary, status_table(states, coloured=coloured), *basis, state_counts(states), sep="\n\n")
    return 0


def _write_table(args: argparse.Namespace, states: list[RunState]) -> int:
    from jobs.cli import run_table

    flag, file = ("--csv", args.csv) if args.csv is not None else ("--parquet", args.parquet)
    if file in run_lookup.sweep_names(args.runs):  # `status --csv SWEEP`
        raise ConfigError(f"{file!r} is a sweep; sweeps come first: status {file} {flag}", at=flag)
    if file == "-" and (args.json or flag == "--parquet"):
        raise ConfigError("needs a FILE here: standard output is for text alone", at=flag)
    (run_table.write_csv if flag == "--csv" else run_table.write_parquet)(states, file)
    if file != "-":
        add_json(states, table=file)
        print(f"{state_counts(states)}: {file}")
    return 0


def _print_gpu_hours(states: list[RunState], as_json: bool) -> int:
    from jobs.cli import gpu_hours_table

    if as_json:
        runs, sweeps = gpu_hours_table.gpu_hours_json(states)
        pairs = zip(states, runs, strict=True)
        usage = [{"sweep": state.sweep, "run": state.name, **each} for state, each in pairs if each]
        add_json(states, usage=usage, usage_by_sweep=sweeps)
    else:
        print(f"{gpu_hours_table.gpu_hours_table(states)}\n\n{state_counts(states)}")
    return 0


def read_sweeps(root: Path, sweeps: list[str], code: str) -> list[RunState]:
    """States of the runs of these sweeps, or of all, from their files.

    A run is stale if it was done by code with another hash than `code`.
    """
    return [state for name in _chosen(root, sweeps) for state in read_runs(root, name, code_hash=code)]


def _chosen(root: Path, sweeps: list[str]) -> list[str]:
    """Names of these sweeps, or of all folders that may be one. Raises `ConfigError`."""
    names = list(dict.fromkeys(run_lookup.find_sweep(root, sweep) for sweep in sweeps))
    return names or subfolders(root)
