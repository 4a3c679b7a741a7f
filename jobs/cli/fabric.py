"""`fabric`: the network between the ranks. Its actions are in `fabric_checks` and `bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from jobs.cli import bench, options
from jobs.cli.options import positive


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
    text = "run with and without environment variables in turns within one job, and name those that gain"
    bench.add_ab_arguments(action("ab", text))
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


def run(args: argparse.Namespace) -> int:
    """Carry out the action; the exit code."""
    if args.action == "ab":
        return bench.run_ab(args)
    from jobs.cli import fabric_checks

    return fabric_checks.explain(args) if args.action == "explain" else fabric_checks.lint_file(args)
