"""Spread of the mean within one run, by batch means: between steps, not between repeats.

Consecutive steps are correlated, so the standard error of pooled steps is too small. Means of long batches
are nearly independent; Student's t on them covers. The spread between repeats is not in it: where repeats
differ by 2 to 5 %, such an interval covers the mean of all repeats in 6 to 60 %. It is told as a number and
neither drawn nor tested.

    >>> relative_half_width([0.1] * 5) is None  # too few steps
    True
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats.estimates import Floats, t_quantile

BATCHES = 10

LONG_BATCHES = 5
"""Batches of double length, where the means of the others are correlated."""

MIN_STEPS = 30
"""Fewer steps give too small a variance: their batches of one or two steps are correlated."""

MAX_LAG_1 = 0.2
"""Lag-1 autocorrelation of batch means above which batches have double length."""


def relative_half_width(values: ArrayLike) -> float | None:
    """Half of the 95 % interval of the mean of correlated values, in order, as a share of the mean.

    None for fewer than `MIN_STEPS` values.
    """
    series = np.asarray(values, dtype=np.float64)
    if series.size < MIN_STEPS:
        return None
    means = _means(series, BATCHES)
    if lag_1(means) > MAX_LAG_1:
        means = _means(series, LONG_BATCHES)
    error = means.std(ddof=1) / np.sqrt(means.size)
    return float(t_quantile(means.size - 1) * error / series.mean())


def lag_1(values: ArrayLike) -> float:
    """Autocorrelation at lag 1; 0 for constant values."""
    series = np.asarray(values, dtype=np.float64)
    centred = series - series.mean()
    total = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / total if total else 0.0


def _means(series: Floats, batches: int) -> Floats:
    return np.array([part.mean() for part in np.array_split(series, batches)])
