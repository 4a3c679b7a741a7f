"""Arguments of `fabric`. Imports argparse alone, as `jobs.cli.arguments`."""

from __future__ import annotations

import argparse
from pathlib import Path

from jobs.cli import options
from jobs.cli.options import above_zero, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions of the verb."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    text = "describe the network of this node and the environment variables that it needs"
    explain = actions.add_parser("explain", help=text, description=text)
    options.json_document(
        explain,
        fabric="description of the node's adapters, interfaces, GPUs and libraries",
        defects="defects of the node that no variable mends, with the remedy",
        variables="variables that the network needs, with reason, evidence and source; `given` wins",
        given="variables that are already set, with their origin and the findings of the lint",
    )
    _add_explain(explain)
    text = "run with and without environment variables in turns within one job, and name those that gain"
    ab = actions.add_parser("ab", help=text, description=text)
    options.common(
        ab,
        **options.SUBMISSION,
        fabric_ab="`fabric-ab.json` of each experiment that has a result",
        kept="variables that gained, alone and again together, by run",
    )
    _add_ab(ab)
    options.submission(ab)
    text = "check the communication variables that a script, a file or a run sets"
    lint = actions.add_parser("lint", help=text, description=text)
    options.json_document(
        lint,
        findings="findings, the worst first: severity, kind, name, value, origin, message, source",
        checked="number of communication variables in the file",
        nccl="version of NCCL that they were checked for; null: the newest known",
    )
    _add_lint(lint)


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


def _add_ab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="VAR=VALUE",
        help="variables; each is compared with the run's environment without this value (those derived for "
        "speed)",
    )
    parser.add_argument(
        "--allow-unknown",
        action="store_true",
        help="compare also a name that is unknown and close to a known one, and a value that the known "
        "versions do not allow",
    )
    parser.add_argument("--like", metavar="RUN", help="measure the step of this run, on its nodes and ranks")
    parser.add_argument("--nodes", type=positive, metavar="N", help="number of nodes (2)")
    parser.add_argument("--gpus-per-node", type=positive, metavar="N", help="ranks on each node (1)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "shared"], help="resources.device (auto)")
    parser.add_argument(
        "--minutes",
        type=above_zero,
        default=20.0,
        metavar="MIN",
        help="largest duration of the experiment in minutes (20)",
    )
    parser.add_argument(
        "--pairs",
        type=positive,
        default=200,
        metavar="N",
        help="largest number of pairs of each comparison (200)",
    )
    parser.add_argument(
        "--block-s", type=above_zero, default=1.0, metavar="S", help="seconds of a block of steps (1)"
    )
    model = parser.add_argument_group("step of a model of linear layers, without --like")
    model.add_argument("--width", type=positive, default=1024, metavar="N", help="width (1024)")
    model.add_argument("--layers", type=positive, default=8, metavar="N", help="layers (8)")
    model.add_argument("--rows", type=positive, default=16, metavar="N", help="samples of a rank (16)")
    model.add_argument(
        "--bucket-mb", type=above_zero, default=25.0, metavar="MIB", help="largest bucket in MiB (25)"
    )


def _add_lint(parser: argparse.ArgumentParser) -> None:
    text = "batch script, KEY=VALUE lines, nccl.conf, env.json, profile or config; - is standard input"
    parser.add_argument("file", metavar="FILE", help=text)
    text = "check against the network of this file tree; / is this machine (without a network)"
    parser.add_argument("--root", type=Path, metavar="TREE", help=text)
    parser.add_argument("--nccl", metavar="VERSION", help="version of NCCL (that of --root, else the newest)")
    parser.add_argument("--nodes", type=positive, metavar="N", help="nodes of the job (unknown)")
