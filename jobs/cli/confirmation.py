"""Large sweeps are submitted with `--yes` only."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from disttrain.errors import ConfigError
from jobs.cli.cost_bound import cost_bound, total_text
from jobs.schedulers.base import Scheduler
from jobs.submission.decide import Action

RUNS_WITHOUT_YES = 200
"""Largest number of runs that a command starts without `--yes`: 5 sizes x 8 variants x 5 repeats. A mistake
in one axis can multiply the number of runs."""


def require_yes(args: argparse.Namespace, actions: Sequence[Action], scheduler: Scheduler) -> None:
    """Raise `ConfigError` if `actions` start more than `RUNS_WITHOUT_YES` runs without `--yes`."""
    starting = [action.plan for action in actions if action.submits and action.plan]
    if not args.yes and len(starting) > RUNS_WITHOUT_YES:
        cost = total_text([cost_bound(run, scheduler) for run in starting])
        raise ConfigError(
            f"{actions[0].sweep}: {len(starting):,} runs would start{cost}; more than {RUNS_WITHOUT_YES} "
            "runs need --yes, and --dry-run lists them"
        )
