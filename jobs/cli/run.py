"""`run`: submit one run."""

from __future__ import annotations

import argparse

from jobs.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(parser, **options.SUBMISSION)
    text = "config file; the axes of a sweep file are ignored"
    options.value(parser, "file", "FILE", text, nargs="?")
    options.value(parser, "--nodes", "N", "node count")
    options.value(parser, "--gpus-per-node", "N", "ranks on each node")
    text = "start from this checkpoint: .../step-NNNNNNNN"
    options.value(parser, "--from", "DIR", text, dest="start_from")
    text = "config values; short ones are part of the run's name"
    options.words(parser, "--set", "KEY=VALUE", text)
    options.value(parser, "--run-name", "NAME", "name of the run (its nodes and config values)")
    options.submission(parser, "the run")


def run(args: argparse.Namespace) -> int:
    from jobs.cli import submitting
    from jobs.submission import plan

    return submitting.submit_plan(args, plan.run_plan)
