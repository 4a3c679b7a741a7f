"""`fabric`: the network between the ranks; each action is a module `jobs.cli.fabric_ACTION`."""

from __future__ import annotations

import argparse
import importlib

from jobs.cli.fabric_arguments import add_arguments

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """Carry out the action; the exit code."""
    return int(importlib.import_module(f"jobs.cli.fabric_{args.action}").run(args))
