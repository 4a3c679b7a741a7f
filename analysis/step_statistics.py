"""Statistics of the measured steps of each run: stationarity, spread within the run, seconds of its ranks.

Stationarity and spread are those of the lowest rank, because all ranks leave the collectives of a step
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from analysis.read.run import Run
from analysis.read.steps import Steps
from analysis.results.rank_steps import RankSteps, rank_steps
from analysis.stats.estimates import relative_half_width
from analysis.stats.stationarity import Stationarity, stationarity


@dataclass(frozen=True)
class StepStatistics:
    """One run."""

    stationarity: Stationarity
    within_run: float | None
    """Half of the interval of the mean step by the spread between steps, as a share of it; None for few
    steps."""
    warmup: int = 0
    """N of `report --warmup N` that leaves out the longer warm-up that MSER-5 found; 0 without one."""
    ranks: RankSteps | None = None
    """None for one rank, without common steps, and in a pipeline, whose ranks have different work."""


RunStatistics = Mapping[str, StepStatistics]
"""By `path` of the run; a run without readable step records has none."""


def step_statistics(runs: Iterable[Run]) -> RunStatistics:
    """Statistics of the runs that are included."""
    return {run.path: _statistics(run) for run in runs if run.included and run.steps.measured_ranks.size}


def _statistics(run: Run) -> StepStatistics:
    step_s = run.steps.series_s
    found = stationarity(step_s)
    is_pipeline = run.metrics is not None and run.metrics.strategy == "pipeline"
    seconds = None if is_pipeline else rank_steps(run.steps)
    warmup = longer_warmup(run.steps, found.warm_up)
    return StepStatistics(found, relative_half_width(step_s), warmup, seconds)


def longer_warmup(steps: Steps, measured: int) -> int:
    """Steps after a start to leave out, so that these first measured steps of the run are; 0 for none."""
    if not measured:
        return 0
    first = steps.lowest_rank
    last = int(np.searchsorted(np.cumsum(first.counts), measured))
    start = steps.step[steps.attempt == first.attempt[last]][0]
    return int(first.step[last] + first.counts[last] - start)
