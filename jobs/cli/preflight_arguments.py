"""Arguments about nodes: the verb `nodes`, and `--skip-preflight` of submissions. Imports argparse alone."""

from __future__ import annotations

import argparse

from jobs.cli.argument_types import hours


def add_skip_preflight(parser: argparse.ArgumentParser) -> None:
    """Add `--skip-preflight`."""
    parser.add_argument(
        "--skip-preflight",
        action="store_true",
        help="start the ranks without checks of the nodes (job.preflight=off, recorded in run.json)",
    )


def add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nodes`."""
    parser.add_argument(
        "--exclude", nargs="+", default=[], metavar="NODE", help="exclude these nodes from later submissions"
    )
    parser.add_argument("--reason", metavar="TEXT", help="with --exclude: the reason")
    parser.add_argument(
        "--hours", type=hours, metavar="H", help="with --exclude: for so many hours (24; at most 8760)"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--clear", nargs="+", default=[], metavar="NODE", help="use these nodes again")
    which.add_argument("--clear-all", action="store_true", help="use all nodes again")
