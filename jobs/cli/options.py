"""Arguments that several verbs share. Imports argparse alone, as a verb's file does at its top."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

Container = argparse._ActionsContainer
"""A parser, or a group of one."""

ACTIONS = "the action on each run, and its reason"
SUBMISSION = {
    "actions": ACTIONS,
    "plans": "`--dry-run`: batch size, cost, config, environment and commands of each run",
    "batches": "`--dry-run`: batch scripts, and the scheduler's answer to each with `--test-only`",
    "sweep": "`--dry-run`: name of the sweep",
    "scaling": "`--dry-run`: `weak`, `strong`, or null",
    "base_ranks": "`--dry-run`: ranks for which the batch size is set, or null",
    "cluster": "`--dry-run`: scheduler that would be used",
}
"""Keys with `--json` of a verb that submits a sweep, and their meaning."""


def flag(parser: Container, name: str, text: str) -> None:
    """Add an option without a value."""
    parser.add_argument(name, action="store_true", help=text)


def value(parser: Container, name: str, metavar: str, text: str | None = None, **details: Any) -> None:
    """Add an option or a positional argument with a value."""
    parser.add_argument(name, metavar=metavar, help=text, **details)


def words(parser: Container, name: str, metavar: str, text: str, **details: Any) -> None:
    """Add an option with one or more values, which may be repeated."""
    value(parser, name, metavar, text, nargs="+", action="extend", default=[], **details)


def runs_folder(parser: Container) -> None:
    value(parser, "--runs", "DIR", "folder of all sweeps (runs)", type=Path, default=Path("runs"))


def json_document(parser: argparse.ArgumentParser, **keys: str) -> None:
    """Add `--json`. `keys` are the keys that only this verb has, with their meaning."""
    flag(parser, "--json", "print one JSON document")
    parser.set_defaults(json_keys=keys)


def common(parser: argparse.ArgumentParser, **keys: str) -> None:
    """Add `--json` and `--runs`."""
    json_document(parser, **keys)
    runs_folder(parser)


def tag_filter(parser: Container) -> None:
    text = "only runs with this tag, of their own or of their sweep; repeat for runs with several"
    value(parser, "--tag", "TAG", text, dest="tags", action="append", default=[])


def run_filter(parser: Container) -> None:
    value(parser, "--state", "STATE[,STATE...]", "only runs in these states: failed,lost")
    tag_filter(parser)


def annotation(parser: Container, of: str) -> None:
    words(parser, "--tag", "TAG", f"tags to add to {of}", dest="tags")
    value(parser, "--note", "TEXT", f"note on {of}, in place of an earlier one")


def page(parser: argparse.ArgumentParser) -> None:
    runs_folder(parser)
    value(parser, "sweep", "SWEEP", "sweep (the newest one)", nargs="?")
    value(parser, "--port", "N", "serve on this port of localhost (a free one)", type=int)


def scheduler(parser: Container) -> None:
    from jobs.schedulers import names

    text = "auto: Slurm if its controller answers (resume: where the run was)"
    parser.add_argument("--cluster", choices=["auto", *names()], default="auto", help=text)
    text = "site profile (resume: the run's own; else $DISTTRAIN_PROFILE or generic)"
    value(parser, "--profile", "NAME|FILE", text)
    text = "profile keys for this submission: partition=gpu account=physics"
    words(parser, "--slurm", "KEY=VALUE", text)


def this_cluster(parser: argparse.ArgumentParser) -> None:
    """Set what `scheduler` adds to its defaults, without the options."""
    parser.set_defaults(cluster="auto", profile=None, slurm=[])


def submission(parser: argparse.ArgumentParser, annotated: str = "the sweep") -> None:
    """Add the options of `sweep`, `run` and the benchmarks."""
    annotation(parser, annotated)
    parser.add_argument("--name", help="name of the sweep (the file name without .yaml)")
    scheduler(parser)
    text = "shell command to call when the sweep has ended and when a run has failed (job.on_end)"
    value(parser, "--on-end", "COMMAND", text)
    flag(parser, "--dry-run", "print what would be submitted, write nothing")
    flag(parser, "--yes", "submit also more than 200 runs, or one run of a file with axes")
    flag(parser, "--all-scripts", "let a dry run print each batch script in full")
    text = "a dry run that validates each job with sbatch --test-only; exit code 1 if Slurm refuses one"
    flag(parser, "--test-only", text)
    text = "a dry run that also estimates the peak memory of a rank of each run; needs no GPU"
    flag(parser, "--memory", text)
    execution(parser)


def execution(parser: argparse.ArgumentParser) -> None:
    """Add how runs start, and how the command waits for them."""
    text = "start the ranks without checks of the nodes (job.preflight=off, recorded in run.json)"
    flag(parser, "--skip-preflight", text)
    text = "start the runs at step 1; their checkpoints are kept in checkpoints.aside"
    flag(parser, "--from-scratch", text)
    words(parser, "--after", "SWEEP|RUN", "runs, or whole sweeps, that must be done before the runs start")
    words(parser, "--after-any", "SWEEP|RUN", "those that must have ended")
    at_once = parser.add_mutually_exclusive_group()
    text = "let at most N runs of the sweep run at the same time (all)"
    value(at_once, "--max-running", "N", text, type=positive)
    flag(at_once, "--serial", "the same as --max-running 1: no run disturbs another's timings")
    flag(parser, "--wait", "show progress until all runs have ended; exit code 1 if any failed")
    flag(parser, "--no-report", "submit no report job after the runs (--wait submits none either)")


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def above_zero(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
