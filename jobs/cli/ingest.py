"""`ingest`: make run directories of the step times that another program wrote as CSV."""

from __future__ import annotations

import argparse
from pathlib import Path

from jobs import PROGRAM
from jobs.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(parser)
    text = "table with a row for each step and rank (docs/report.md)"
    options.value(parser, "file", "FILE.csv", text, type=Path)
    options.value(parser, "--sweep", "NAME", "sweep of rows without a sweep (name of the file)")
    text = "samples of a step over all ranks, for a table without the column samples"
    options.value(parser, "--global-batch-size", "N", text, type=options.positive)
    text = "first steps of each run that the figures leave out (10)"
    options.value(parser, "--warmup-steps", "N", text, type=int, default=10)
    text = "YAML file with a section targets, which `report --check` compares with (docs/statistics.md)"
    options.value(parser, "--targets", "FILE", text, type=Path)


def run(args: argparse.Namespace) -> int:
    from analysis.ingest.write import ingest  # imports numpy
    from disttrain.config.parsing import load
    from disttrain.errors import ConfigError
    from jobs.cli.command_output import add_json, print_warning
    from jobs.cli.selection import read_states
    from sweeps.targets_section import read_targets

    if args.sweep is not None and (args.sweep.startswith(".") or "/" in args.sweep or not args.sweep):
        raise ConfigError(f"{args.sweep!r} is not a name of a folder", at="--sweep")
    if args.warmup_steps < 0:
        raise ConfigError(f"{args.warmup_steps} is not 0 or greater", at="--warmup-steps")
    targets = read_targets(load(args.targets)) if args.targets else None  # other sections have no effect
    if args.targets and not targets:
        raise ConfigError(f"{args.targets} has no section `targets`", at="--targets")
    runs, warnings = ingest(
        args.file,
        args.runs,
        sweep=args.sweep,
        global_batch_size=args.global_batch_size,
        warmup_steps=args.warmup_steps,
        targets=targets or (),
    )
    for line in warnings:
        print_warning(line)
    states, sweeps = read_states(runs), sorted({run.sweep for run in runs})
    add_json(states)
    for state in states:
        print(f"ingested {state.label}")
    print(f"report:  {PROGRAM} report {' '.join(sweeps)}" + (" --out report" if sweeps[1:] else ""))
    return 0
