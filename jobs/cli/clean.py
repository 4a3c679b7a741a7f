"""`clean`: move runs, and code copies that no remaining run refers to, into `RUNS/.trash/<time>/`.

`--restore` moves runs back. `--purge` deletes the trash; without it nothing is deleted.
"""

from __future__ import annotations

import argparse

from jobs.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(
        parser,
        moved="runs, and the folder that each moved to; `runs` also has the active runs that stayed",
        restored="`--restore`: runs, and the folder that each moved to",
        deleted="`--purge`: folders of the trash, and their runs",
    )
    options.value(parser, "runs_given", "RUN", "runs or whole sweeps, in any state", nargs="*")
    options.flag(parser, "--failed", "select failed, stopped, cancelled, lost and unreadable runs")
    options.flag(parser, "--stale", "select runs done by older code")
    options.tag_filter(parser)
    trash = parser.add_mutually_exclusive_group()
    options.flag(trash, "--restore", "move runs back (without RUN: those of the last clean)")
    options.flag(trash, "--purge", "delete the trash for good")
    options.flag(parser, "--dry-run", "print the moves or deletions, change nothing")


def run(args: argparse.Namespace) -> int:
    from disttrain.errors import ConfigError
    from jobs.cli import trash

    selects = args.failed or args.stale or bool(args.tags)
    if (args.restore or args.purge) and selects:
        flag = "--restore" if args.restore else "--purge"
        raise ConfigError(f"{flag} goes with none of --failed, --stale and --tag")
    if args.purge and args.runs_given:
        raise ConfigError(f"--purge deletes the whole trash: it takes no RUN (given: {args.runs_given[0]!r})")
    if not (args.restore or args.purge or args.runs_given or selects):
        raise ConfigError("nothing to move is named: give runs or sweeps, --failed, --stale or --tag")
    action = trash.restore if args.restore else trash.purge if args.purge else trash.move
    action(args)
    return 0
