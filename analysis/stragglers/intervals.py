"""Correlated steps: mean with an interval, and the number of independent steps they are worth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student_t

from analysis.stats.estimates import CONFIDENCE, Estimate, Floats

BATCHES = 10
_BATCH_STEPS = 4
"""Smallest batch in steps, where five batches are left."""


class SecondsInterval(NamedTuple):
    """Seconds, with the bounds of a 95 % interval; None with fewer than four steps."""

    value: float
    low: float | None
    high: float | None

    def scaled(self, factor: float) -> SecondsInterval:
        """The interval of `factor` times the mean; `factor` is at least 0."""
        low, high = self.low, self.high
        return SecondsInterval(
            self.value * factor,
            None if low is None else low * factor,
            None if high is None else high * factor,
        )

    def estimate(self, least: float | None = None) -> Estimate:
        """The mean as an estimate of one repeat, with its interval within the run; `least` is the smallest
        value of the mean and its bounds."""
        value, low, high = (
            each if least is None or each is None else max(each, least)
            for each in (self.value, self.low, self.high)
        )
        assert value is not None
        return Estimate(value, low, high, 1, "repeats" if low is None else "within run")


def total(parts: Iterable[SecondsInterval]) -> SecondsInterval:
    """Sum of means in fixed proportion: their bounds add up."""
    first, *others = parts
    for each in others:
        low = None if first.low is None or each.low is None else first.low + each.low
        high = None if first.high is None or each.high is None else first.high + each.high
        first = SecondsInterval(first.value + each.value, low, high)
    return first


def mean_interval(series_s: Floats, confidence: float = CONFIDENCE) -> SecondsInterval:
    """Mean of the steps of one run by batch means: Student's t over at most ten means of consecutive steps.

    The mean may be negative, so the interval is of the seconds, not of their logarithms.
    """
    value, steps = float(np.mean(series_s)), len(series_s)
    if steps < 4:
        return SecondsInterval(value, None, None)
    batches = min(BATCHES, steps // 2, max(5, steps // _BATCH_STEPS))
    means = np.array([part.mean() for part in np.array_split(series_s, batches)])
    half = student_t.ppf(0.5 + confidence / 2, batches - 1) * means.std(ddof=1) / np.sqrt(batches)
    return SecondsInterval(value, value - float(half), value + float(half))


def correlation(series_s: Floats) -> float:
    """Autocorrelation at lag 1 of each row (ranks, steps), median over the rows; from 0 to 0.98.

    The median ignores the few rows that change their level, such as a rank that is slow for a while. The
    estimate from n steps about their own mean is too small by (1 + 4 r) / n (Kendall 1954), which is added.
    """
    steps = series_s.shape[1]
    centred = series_s - series_s.mean(axis=1, keepdims=True)
    total = (centred**2).sum(axis=1)
    lagged = (centred[:, 1:] * centred[:, :-1]).sum(axis=1)
    found = float(np.median(lagged / np.maximum(total, np.finfo(float).tiny)))
    return float(np.clip((found + 1 / steps) / (1 - min(4 / steps, 0.5)), 0.0, 0.98))


def correlation_bound(lag_1: float, ranks: int, steps: int) -> float:
    """The estimate of `correlation` plus one standard error (Bartlett 1946); at most 0.98.

    A few steps show too little of their correlation, and they would pass for more independent steps than they
    are worth. The deviations of N ranks from each other are worth N - 1 series.
    """
    return min(0.98, lag_1 + float(np.sqrt((1 - lag_1**2) / (steps * (ranks - 1)))))


def independent_steps(steps: int, lag_1: float) -> int:
    """Number of independent steps with the variance of the mean of this many steps: first-order
    autoregression, n (1 - r) / (1 + r)."""
    return max(1, round(steps * (1 - lag_1) / (1 + lag_1)))
