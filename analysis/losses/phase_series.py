"""Phases of the steps of one run, in order: the spread within the run of their means."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis.stats.estimates import Floats
from disttrain.records.steps import PHASES

PhaseSeries = Mapping[str, Floats]
"""Seconds of `step_s` and of each phase in each measured step, mean over ranks, each of shape (steps,)."""


def phase_series(steps: pd.DataFrame, ranks: int) -> PhaseSeries | None:
    """The series of one run from its rows of `Frames.steps`; None unless all its ranks have records.

    The record of several steps counts as their mean, as often as it has steps. A phase that was not measured
    counts as zero seconds.
    """
    rows = steps[steps["measured"]]
    if rows.empty or rows["rank"].nunique() != ranks:
        return None
    names = ["step_s", *PHASES]
    counts = rows["steps"].to_numpy()
    means = rows[names].div(counts, axis=0).groupby(rows["step"].to_numpy()).mean().fillna(0.0)
    repeated = pd.Series(counts).groupby(rows["step"].to_numpy()).first().to_numpy()
    return {name: np.repeat(means[name].to_numpy(), repeated) for name in names}
