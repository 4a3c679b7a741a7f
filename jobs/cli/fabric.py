"""`fabric`: the network between the ranks; each action is a module `jobs.cli.fabric_ACTION`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

from jobs.cli import options
from jobs.cli.options import above_zero, positive

Number = tuple[str, str, Callable[[str], float], float, str]
"""Option, name of its value, type, default, help."""
_AB: tuple[Number, ...] = (
    ("--minutes", "MIN", above_zero, 20, "largest duration of the experiment in minutes"),
    ("--pairs", "N", positive, 200, "largest number of pairs of each comparison"),
    ("--block-s", "S", above_zero, 1, "seconds of a block of steps"),
)
_MODEL: tuple[Number, ...] = (
    ("--width", "N", positive, 1024, "width"),
    ("--layers", "N", positive, 8, "layers"),
    ("--rows", "N", positive, 16, "samples of a rank"),
    ("--bucket-mb", "MIB", above_zero, 25, "largest bucket in MiB"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions of the verb."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=text)

    explain = action(
        "explain", "describe the network of this node and the environment variables that it needs"
    )
    options.json_document(
        explain,
        fabric="description of the node's adapters, interfaces, GPUs and libraries",
        defects="defects of the node that no variable mends, with the remedy",
        variables="variables that the network needs, with reason, evidence and source; `given` wins",
        given="variables that are already set, with their origin and the findings of the lint",
    )
    text = "folder with a copy of /sys, /proc and /etc of a node (this node)"
    options.value(explain, "--root", "TREE", text, type=Path)
    options.value(explain, "--nodes", "N", "nodes of the job (2)", type=positive, default=2)
    options.value(explain, "--gpus-per-node", "N", "GPUs of the job on each node (all)", type=positive)
    _add_ab(
        action(
            "ab",
            "run with and without environment variables in turns within one job, and name those that gain",
        )
    )
    lint = action("lint", "check the communication variables that a script, a file or a run sets")
    options.json_document(
        lint,
        findings="findings, the worst first: severity, kind, name, value, origin, message, source",
        checked="number of communication variables in the file",
        nccl="version of NCCL that they were checked for; null: the newest known",
    )
    text = "batch script, KEY=VALUE lines, nccl.conf, env.json, profile or config; - is standard input"
    options.value(lint, "file", "FILE", text)
    text = "check against the network of this file tree; / is this machine (without a network)"
    options.value(lint, "--root", "TREE", text, type=Path)
    options.value(lint, "--nccl", "VERSION", "version of NCCL (that of --root, else the newest)")
    options.value(lint, "--nodes", "N", "nodes of the job (unknown)", type=positive)


def _add_ab(parser: argparse.ArgumentParser) -> None:
    options.common(
        parser,
        **options.SUBMISSION,
        fabric_ab="`fabric-ab.json` of each experiment that has a result",
        kept="variables that gained, alone and again together, by run",
    )
    text = (
        "variables; each is compared with the run's environment without this value (those derived for speed)"
    )
    options.value(parser, "settings", "VAR=VALUE", text, nargs="*")
    text = "compare also a name that is unknown and close to a known one, and a value that the known versions"
    options.flag(parser, "--allow-unknown", f"{text} do not allow")
    options.value(parser, "--like", "RUN", "measure the step of this run, on its nodes and ranks")
    options.value(parser, "--nodes", "N", "number of nodes (2)", type=positive)
    options.value(parser, "--gpus-per-node", "N", "ranks on each node (1)", type=positive)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "shared"], help="resources.device (auto)")
    model = parser.add_argument_group("step of a model of linear layers, without --like")
    for group, numbers in ((parser, _AB), (model, _MODEL)):
        for name, metavar, kind, default, text in numbers:
            options.value(group, name, metavar, f"{text} ({default:g})", type=kind, default=default)
    options.submission(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out the action; the exit code."""
    return int(importlib.import_module(f"jobs.cli.fabric_{args.action}").run(args))
