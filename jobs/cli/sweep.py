"""`sweep`: submit the missing runs of a sweep."""

from __future__ import annotations

import argparse
import functools

from jobs.cli import submitting
from jobs.cli.progress_bar import progress
from jobs.submission import request


def run(args: argparse.Namespace) -> int:
    return submitting.submit_plan(args, functools.partial(request.sweep_plan, progress=progress))
