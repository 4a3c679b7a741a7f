"""`ingest`: make run directories of the step times that another program wrote as CSV."""

from __future__ import annotations

import argparse
from pathlib import Path

from disttrain.config.parsing import load
from disttrain.errors import ConfigError
from disttrain.records.planned import Target
from jobs.cli.command_output import add_json, print_warning
from jobs.cli.submitting import read_states
from sweeps.targets_section import read_targets


def run(args: argparse.Namespace) -> int:
    from analysis.ingest.write import ingest  # imports numpy

    if args.sweep is not None and (args.sweep.startswith(".") or "/" in args.sweep or not args.sweep):
        raise ConfigError(f"{args.sweep!r} is not a name of a folder", at="--sweep")
    if args.warmup_steps < 0:
        raise ConfigError(f"{args.warmup_steps} is not 0 or greater", at="--warmup-steps")
    if args.global_batch_size is not None and args.global_batch_size < 1:
        raise ConfigError(f"{args.global_batch_size} is not 1 or greater", at="--global-batch-size")
    runs, warnings = ingest(
        args.file,
        args.runs,
        sweep=args.sweep,
        global_batch_size=args.global_batch_size,
        warmup_steps=args.warmup_steps,
        targets=_targets(args.targets) if args.targets else (),
    )
    for line in warnings:
        print_warning(line)
    if args.json:
        add_json(read_states(runs))
        return 0
    sweeps = sorted({run.sweep for run in runs})
    for each in runs:
        print(f"ingested {each.sweep}/{each.name}")
    print(f"report:  python submit.py report {' '.join(sweeps)}" + (" --out report" if sweeps[1:] else ""))
    return 0


def _targets(path: Path) -> tuple[Target, ...]:
    """Targets of a sweep file, whose other sections have no effect on ingested runs."""
    draft = load(path)
    found = read_targets(draft)
    if not found:
        raise ConfigError(f"{path} has no section `targets`", at="--targets")
    return found
