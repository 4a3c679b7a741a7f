"""`run`: submit one run."""

from __future__ import annotations

import argparse

from jobs.cli import submitting
from jobs.submission import request


def run(args: argparse.Namespace) -> int:
    return submitting.submit_plan(args, request.run_plan)
