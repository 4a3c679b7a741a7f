"""Mean of the steps of one run with an interval by batch means: between steps, not between repeats.

Consecutive steps are correlated, so the standard error of pooled steps is too small. Means of long batches
are nearly independent; Student's t on them covers. The spread between repeats is not in it: where repeats
differ by 2 to 5 %, such an interval covers the mean of all repeats in 6 to 60 %. It is told as a number and
neither drawn nor tested.

    >>> relative_half_width([0.1] * 5) is None  # too few steps
    True
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.stats.estimates import Estimate, Floats, moments, within

BATCHES = 10

LONG_BATCHES = 5
"""Batches of double length, where the means of the others are correlated."""

MIN_STEPS = 30
"""Fewer steps give too small a variance: their batches of one or two steps are correlated."""

LEAST_STEPS = 4
"""Fewer steps have no interval at all."""

MAX_LAG_1 = 0.2
"""Lag-1 autocorrelation of batch means above which batches have double length."""


def relative_half_width(values: ArrayLike) -> float | None:
    """Half of the 95 % interval of the mean of correlated values, in order, as a share of the mean.

    None for fewer than `MIN_STEPS` values.
    """
    series = np.asarray(values, dtype=np.float64)
    mean = mean_interval(series)
    return None if series.size < MIN_STEPS or mean.high is None else mean.high / mean.value - 1


def mean_interval(series: Floats) -> Estimate:
    """Mean of the steps of one run with a 95 % interval, over at most ten batches. The mean may be negative.
    Fewer than four steps have no interval."""
    value, steps = float(series.mean()), series.size
    if steps < LEAST_STEPS:
        return Estimate(value, None, None, 1)
    batches = min(BATCHES, steps // 2, max(LONG_BATCHES, steps // 4))
    if batches == BATCHES and lag_1(_means(series, BATCHES)) > MAX_LAG_1:
        batches = LONG_BATCHES
    return replace(within(value, moments(_means(series, batches)), 1), basis="within run")


def lag_1(values: ArrayLike) -> Floats:
    """Autocorrelation at lag 1 over the last axis; 0 for constant values."""
    series = np.asarray(values, dtype=np.float64)
    centred = series - series.mean(axis=-1, keepdims=True)
    lagged = (centred[..., 1:] * centred[..., :-1]).sum(axis=-1)
    return np.asarray(lagged / np.maximum((centred**2).sum(axis=-1), np.finfo(float).tiny))


def block_sums(values: Floats, blocks: int) -> tuple[Floats, NDArray[np.intp]]:
    """Sums over so many blocks of the last axis, as `np.array_split` cuts them, and lengths of the blocks."""
    size = values.shape[-1]
    sizes = size // blocks + (np.arange(blocks) < size % blocks)
    return np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=-1), sizes


def _means(series: Floats, batches: int) -> Floats:
    sums, sizes = block_sums(series, batches)
    return sums / sizes
