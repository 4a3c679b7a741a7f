"""Generated series of step durations with known statistics."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

MEAN_SPIKE = 0.3
"""Mean excess of a long step, as a share of the usual step; the duration of the excess is exponential."""

SPIKES = 0.02
"""Share of long steps."""

MEAN_S = 1 + SPIKES * MEAN_SPIKE
"""True mean of `autocorrelated`, in seconds."""


def autocorrelated(
    rng: np.random.Generator, count: int, lag_1: float, cv: float = 0.03
) -> NDArray[np.float64]:
    """Durations around 1 s: an AR(1) process of this lag-1 autocorrelation, with a few long steps."""
    usual = ar1(rng, count, lag_1, cv)
    series: NDArray[np.float64] = usual + (rng.random(count) < SPIKES) * rng.exponential(MEAN_SPIKE, count)
    return series


def ar1(rng: np.random.Generator, count: int, lag_1: float, cv: float) -> NDArray[np.float64]:
    """A stationary AR(1) process around 1 with this lag-1 autocorrelation and standard deviation."""
    noise = rng.normal(0, np.sqrt(1 - lag_1**2), count + 100)
    series: NDArray[np.float64] = 1 + cv * lfilter([1], [1, -lag_1], noise)[100:]
    return series
