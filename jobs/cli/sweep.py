"""`sweep`: submit the missing runs of a sweep."""

from __future__ import annotations

import argparse
import functools

from jobs.cli import submitting, target
from jobs.cli.progress_bar import progress
from jobs.submission import request


def run(args: argparse.Namespace) -> int:
    unknown = args.gpus and not args.gpus_per_node
    site = target.described_scheduler(args, ()).profile(None) if unknown else None
    of_node = site.gpus_per_node if site else None
    plan = functools.partial(request.sweep_plan, progress=progress, gpus_of_node=of_node)
    return submitting.submit_plan(args, plan)
