"""`sweep`: bring a sweep to what is asked for."""

from __future__ import annotations

import argparse

from jobs.cli import place, plan


def run(args: argparse.Namespace) -> int:
    return place.run(args, plan.sweep_plan)
