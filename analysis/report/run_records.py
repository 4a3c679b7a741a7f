"""GPU-hours and queue time of the runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from analysis.read.run import Run


class RunCost(NamedTuple):
    """GPU-hours and queue time of one run over all attempts, finished or not."""

    sweep: str
    run: str
    state: str
    attempts: int
    hours: float
    unit: str
    """`GPU-hours`, or `CPU rank-hours` where ranks had no GPU."""
    hours_bound: float | None
    """Most hours that one start may use: its time limit times its devices."""
    queue_wait_s: float | None
    """Summed over all starts; None if no submission is on record."""
    source: str
    """`sacct`: Slurm's accounting; `timestamps`: the attempts' own times."""


def run_costs(runs: Iterable[Run]) -> list[RunCost]:
    """Device-hours of each started run."""
    return [
        RunCost(
            run.sweep,
            run.name,
            run.state,
            run.starts,
            run.usage.hours,
            run.usage.unit,
            run.hours_bound,
            run.usage.queue_wait_s,
            run.usage.source,
        )
        for run in runs
        if run.usage
    ]
