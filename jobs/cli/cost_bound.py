"""Upper bound of the processor time of runs, before their submission."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jobs.schedulers.base import Scheduler
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
