"""`run`: submit one run."""

from __future__ import annotations

import argparse

from jobs.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(parser, **options.SUBMISSION)
    text = "config file; of a sweep file, the base without its axes"
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
    from disttrain.errors import ConfigError
    from jobs.cli import submitting
    from jobs.cli.command_output import print_warning
    from jobs.submission import plan

    if unused := plan.unused_axes(args):
        line = f"{args.file}: one run is started, without the axes {', '.join(unused)}"
        if not (args.yes or args.dry_run or args.test_only or args.memory):
            raise ConfigError(f"{line}, and needs --yes; `sweep` starts a run for each value")
        print_warning(line)
    return submitting.submit_plan(args, plan.run_plan)
