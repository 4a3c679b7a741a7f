"""Arguments that choose a scheduler and its options, and those of `doctor`. Imports argparse alone."""

from __future__ import annotations

import argparse
from pathlib import Path

PROFILE = "site profile"
PROFILE_KEYS = (
    f"keys of the {PROFILE}: in a file for --profile (`submit.py doctor --write-profile mysite.yaml` drafts "
    "one), or each as --slurm KEY=VALUE"
)
"""Where a user sets a key that a fix names."""


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """`--cluster`, `--profile` and `--slurm`."""
    parser.add_argument(
        "--cluster",
        choices=["auto", "slurm", "local"],
        default="auto",
        help="auto: Slurm if its controller answers (resume: where the run was)",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME|FILE",
        help="site profile (resume: the run's own; else $DISTTRAIN_PROFILE or generic)",
    )
    parser.add_argument(
        "--slurm", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
        help="profile keys for this submission: partition=gpu account=physics",
    )  # fmt: skip


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Arguments of `doctor`."""
    add_cluster(parser)
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--job", action="store_true", help="also examine a node, in a job of at most 5 minutes")
    does.add_argument(
        "--write-profile",
        type=Path,
        metavar="FILE",
        help="write a site profile drafted from the cluster's partitions and jobs (a new .yaml file)",
    )
