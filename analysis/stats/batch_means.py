"""Interval of a mean within one run, by batch means: the spread between steps, not between repeats.

Consecutive steps are correlated, so the standard error of pooled steps is too small. Means of long batches
are nearly independent; Student's t on them covers. The interval describes this one run: it does not contain
the spread between repeats, so it is too narrow for a comparison with another run.

    >>> within_run([0.1] * 5) is None  # too few steps
    True
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats.estimates import Floats, LogMoments

BATCHES = 10

LONG_BATCHES = 5
"""Batches of double length, where the means of the others are correlated."""

MIN_STEPS = 30
"""Fewer steps give too small a variance: their batches of one or two steps are correlated."""

MAX_LAG_1 = 0.2
"""Lag-1 autocorrelation of batch means above which batches have double length."""


class MeanMoments(NamedTuple):
    """The mean of correlated values, with its variance and the degrees of freedom of the variance."""

    mean: float
    variance: float
    freedom: float


def within_run(values: ArrayLike) -> LogMoments | None:
    """Logarithm of the mean of correlated positive values, in order, with variance and degrees of freedom.

    The variance of the logarithm is that of the mean divided by its square (delta method). None for fewer
    than `MIN_STEPS` values.
    """
    found = mean_moments(values)
    if found is None:
        return None
    return LogMoments(float(np.log(found.mean)), found.variance / found.mean**2, found.freedom)


def mean_moments(values: ArrayLike) -> MeanMoments | None:
    """Mean of correlated values of either sign, in order; None for fewer than `MIN_STEPS` values."""
    series = np.asarray(values, dtype=np.float64)
    if series.size < MIN_STEPS:
        return None
    means = _means(series, BATCHES)
    if lag_1(means) > MAX_LAG_1:
        means = _means(series, LONG_BATCHES)
    return MeanMoments(float(series.mean()), float(means.var(ddof=1)) / means.size, means.size - 1.0)


def lag_1(values: ArrayLike) -> float:
    """Autocorrelation at lag 1; 0 for constant values."""
    series = np.asarray(values, dtype=np.float64)
    centred = series - series.mean()
    total = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / total if total else 0.0


def _means(series: Floats, batches: int) -> Floats:
    return np.array([part.mean() for part in np.array_split(series, batches)])
