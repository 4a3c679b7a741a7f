"""Arguments of `fabric`. Imports argparse alone, as `jobs.cli.arguments`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobs.cli.argument_types import positive


def add_fabric(
    subparsers: Any,
    parents: Sequence[argparse.ArgumentParser],
    add_submission: Callable[[argparse.ArgumentParser], None],
) -> None:
    """The verb and its actions; `parents` hold `--json` and `--runs`."""
    text = "the network between the ranks, and the environment variables for it"
    parser = subparsers.add_parser("fabric", help=text, description=text)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    text = "describe the network of this node and the environment variables that it needs"
    _add_explain(actions.add_parser("explain", help=text, description=text, parents=parents[:1]))


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        type=Path,
        metavar="TREE",
        help="folder with a copy of /sys, /proc and /etc of a node (this node)",
    )
    parser.add_argument("--nodes", type=positive, default=2, metavar="N", help="nodes of the job (2)")
    parser.add_argument(
        "--gpus-per-node", type=positive, metavar="N", help="GPUs of the job on each node (all)"
    )
