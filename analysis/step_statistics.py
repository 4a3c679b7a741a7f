"""Statistics of the measured steps of each run: stationarity, and the spread within the run.

Step records are read to check the recorded warm-up of the trainer; `analysis.truncation` leaves out more. The
steps of rank 0 stand for the run, because all ranks leave the collectives of a step together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.read.columns import Columns
from analysis.read.map_runs import map_runs
from analysis.read.run_records import read_run_steps
from analysis.stats.batch_means import relative_half_width
from analysis.stats.estimates import Floats
from analysis.stats.stationarity import Stationarity, stationarity


@dataclass(frozen=True)
class StepStatistics:
    """One run."""

    measured_steps: int
    stationarity: Stationarity
    within_run: float | None
    """Half of the interval of the mean step by the spread between steps, as a share of it; None for few
    steps."""
    not_truncated: str = ""
    """The repeat, and its reason, for which a warm-up that is too short stays in the mean."""


RunStatistics = Mapping[str, StepStatistics]
"""By `path` of the run; a run without readable step records has none."""


def step_statistics(table: pd.DataFrame) -> RunStatistics:
    """Statistics of the included runs in the table of `analysis.read.load.load`."""
    included = table[table["included"]]
    found = map_runs(
        lambda row: (row["path"], measured_step_s(read_run_steps(row).steps)), included, small_results=True
    )
    return {path: statistics_of(step_s) for path, step_s in found if step_s.size}


def statistics_of(step_s: Floats) -> StepStatistics:
    """Statistics of the durations in seconds of measured steps, in order."""
    return StepStatistics(step_s.size, stationarity(step_s), relative_half_width(step_s))


def measured_step_s(steps: Columns) -> Floats:
    """Durations in seconds of the measured steps of the lowest rank, in order.

    The steps of an aggregate count as equally long.
    """
    if not steps or not steps["measured"].any():
        return np.empty(0)
    chosen = steps["measured"] & (steps["rank"] == steps["rank"][steps["measured"]].min())
    order = np.argsort(steps["step"][chosen])
    counts = steps["steps"][chosen][order]
    step_s: Floats = np.repeat(steps["step_s"][chosen][order] / counts, counts)
    return step_s
