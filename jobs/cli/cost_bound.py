"""Upper bound of the processor time of runs before their submission; large sweeps need `--yes`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from disttrain.errors import ConfigError
from jobs.schedulers.interface import Scheduler
from jobs.submission.decide import Action
from sweeps.expand import RunPlan


@dataclass(frozen=True)
class CostBound:
    """Upper bound of the processor time of one attempt."""

    hours: float
    unit: str
    """`GPU-hours`, or `CPU rank-hours` where ranks have no GPU of their own."""


def cost_bound(run: RunPlan, scheduler: Scheduler) -> CostBound:
    """Time limit of one attempt times its GPUs, or its ranks."""
    resources = run.config.resources
    gpus = resources.nodes * resources.gpus_per_node
    on_gpu = scheduler.uses_gpus(resources.device, gpus)
    hours = (gpus if on_gpu else run.config.world_size) * run.config.job.time_limit_min / 60
    return CostBound(hours, "GPU-hours" if on_gpu else "CPU rank-hours")


def total_text(bounds: Iterable[CostBound]) -> str:
    """The sum by unit as a part of a sentence: `, at most 12 GPU-hours (...)`. Empty without bounds."""
    hours: dict[str, float] = {}
    for bound in bounds:
        hours[bound.unit] = hours.get(bound.unit, 0.0) + bound.hours
    text = " and ".join(
        f"{total:,.0f} {unit}" if total >= 1000 else f"{total:.3g} {unit}" for unit, total in hours.items()
    )
    return f", at most {text} (each attempt until its time limit)" if text else ""


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
