"""`sweep`: submit the missing runs of a sweep."""

from __future__ import annotations

import argparse

from jobs.cli import submitting
from jobs.submission import request


def run(args: argparse.Namespace) -> int:
    return submitting.submit_plan(args, request.sweep_plan)
