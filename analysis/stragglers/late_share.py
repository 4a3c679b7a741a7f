"""Test of how often a rank arrives last.

Among N equal ranks each is last in a share 1/N of the steps. A one-sided binomial test gives each rank's
p-value; Benjamini and Hochberg (1995) bound the share of false discoveries among the ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from analysis.stats.estimates import Floats


class LateShare(NamedTuple):
    """One value for each rank."""

    share: Floats
    """Share of the steps in which the rank is last."""
    adjusted_p: Floats
    """p-value after Benjamini and Hochberg: a rank is late with a false discovery rate of this value."""


def late_share(arrival_s: Floats, counted: int | None = None) -> LateShare:
    """Share of steps in which each rank is last, and its test against 1 / ranks.

    Args:
        arrival_s: (ranks, steps), seconds from any instant common to the ranks of a step. Where several
            ranks are last together, none is counted.
        counted: number of independent steps, at most that of the matrix; by default all of its steps.
    """
    ranks, steps = arrival_s.shape
    last = arrival_s == arrival_s.max(axis=0)
    alone = last.sum(axis=0) == 1
    share = (last & alone).sum(axis=1) / steps
    independent = min(steps, counted or steps)
    p = stats.binom.sf(np.ceil(share * independent) - 1, independent, 1 / ranks)
    return LateShare(share, stats.false_discovery_control(p))
