"""Estimates over repeats of a run, with intervals whose unit is the run.

Steps of one run are correlated (placement, clocks, neighbours), so intervals over pooled steps are too
narrow: with 1 % spread between repeats, a nominal 95 % interval over pooled steps covers about half the time.
Here each repeat gives one number, and the spread between repeats gives the interval: Student's t on
logarithms, because rates and durations are positive and are compared by ratios.

    >>> ratio([200.0, 204.0, 196.0], [100.0, 102.0, 98.0]).value
    2.0
    >>> ratio([200.0], [100.0]).low is None  # one repeat each: no interval
    True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

CONFIDENCE = 0.95
"""Nominal coverage of all intervals."""

Floats = NDArray[np.float64]


Basis = Literal["repeats", "within run", "not stationary", "equal repeats", "maximum"]
"""Basis of an interval: the spread between repeats, or between the steps of one run (of a rank against the
others of that run). The mean of a run that is not stationary has no interval; neither have repeats that are
equal to the last digit, which shows how they were rounded, and the maximum of all repeats."""


class LogMoments(NamedTuple):
    """Estimated logarithms of one or several series."""

    centre: Floats
    variance: Floats
    """Variance of `centre`; NaN if unknown."""
    freedom: Floats
    """Degrees of freedom of `variance`."""


@dataclass(frozen=True)
class Estimate:
    """A positive quantity over repeats; `low` and `high` are None without an interval."""

    value: float
    low: float | None
    high: float | None
    repeats: int
    """Number of repeats; of a ratio, the smaller of its two numbers."""
    basis: Basis = "repeats"

    def mapped(self, function: Callable[[float], float]) -> Estimate:
        """The estimate of a monotonic function of the quantity."""
        low, high = sorted(function(bound) for bound in (self.low, self.high) if bound is not None) or (
            None,
            None,
        )
        return replace(self, value=function(self.value), low=low, high=high)

    def scaled(self, factor: float) -> Estimate:
        """The estimate of `factor` times the quantity."""
        return self.mapped(lambda value: value * factor)

    def inverse(self, numerator: float = 1.0) -> Estimate:
        """The estimate of `numerator` divided by the quantity; the bounds swap."""
        return self.mapped(lambda value: numerator / value)


def t_quantile(freedom: ArrayLike, confidence: float = CONFIDENCE) -> Floats:
    """Half width of a two-sided interval of Student's t in standard errors."""
    half: Floats = stdtrit(freedom, 0.5 + confidence / 2)
    return half


def log_moments(values: ArrayLike) -> LogMoments:
    """Means of logarithms over the last axis (repeats), with the variances of these means."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    repeats = logs.shape[-1]
    centre = logs.mean(axis=-1)
    variance = logs.var(axis=-1, ddof=1) / repeats if repeats > 1 else np.full_like(centre, np.nan)
    return LogMoments(centre, variance, np.asarray(repeats - 1.0))


def difference(moments: LogMoments, base: LogMoments) -> LogMoments:
    """Logarithms of the ratios of two independent quantities.

    Both sides may differ in the number and spread of their repeats: degrees of freedom by Welch (1947).
    """
    total = moments.variance + base.variance
    with np.errstate(invalid="ignore"):  # no spread on both sides: 0 / 0
        freedom = total**2 / sum(each.variance**2 / each.freedom for each in (moments, base))
    return LogMoments(moments.centre - base.centre, total, freedom)


def bounds(moments: LogMoments, confidence: float = CONFIDENCE) -> tuple[Floats, Floats, Floats]:
    """The quantities with these logarithms, and by Student's t the lower and upper bounds of their intervals;
    NaN without an interval."""
    centre, variance, freedom = moments
    # no spread: degrees of freedom are 0/0, the width is zero
    half = np.where(variance == 0, 0.0, t_quantile(freedom, confidence) * np.sqrt(variance))
    return np.exp(centre), np.exp(centre - half), np.exp(centre + half)


def from_moments(moments: LogMoments, repeats: int, confidence: float = CONFIDENCE) -> Estimate:
    """`bounds` of one quantity."""
    value, low, high = map(float, bounds(moments, confidence))
    return Estimate(value, None, None, repeats) if np.isnan(low) else Estimate(value, low, high, repeats)


def geometric_mean(values: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Geometric mean over repeats."""
    return from_moments(log_moments(values), np.size(values), confidence)


def ratio(values: ArrayLike, base: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Ratio of two geometric means over repeats."""
    moments = difference(log_moments(values), log_moments(base))
    return from_moments(moments, min(np.size(values), np.size(base)), confidence)


def share_mean(values: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Arithmetic mean of shares over repeats with Student's t; a share may be zero, so without logarithms.

    The interval ends at 0.
    """
    return ratio_of_means(values, np.ones(np.shape(values)), confidence)


def ratio_of_means(values: ArrayLike, base: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Mean of `values` / mean of `base` over the same repeats: ratios themselves are not averaged.

    Student's t on the linearized ratio (delta method). The interval ends at 0.
    """
    upper, lower = (np.asarray(side, dtype=np.float64) for side in (values, base))
    mean = float(upper.mean() / lower.mean())
    if upper.size == 1:
        return Estimate(mean, None, None, 1)
    spread = ((upper - mean * lower) / lower.mean()).std(ddof=1)
    half = float(t_quantile(upper.size - 1, confidence) * spread / np.sqrt(upper.size))
    return Estimate(mean, max(0.0, mean - half), mean + half, upper.size)


def on_basis(estimate: Estimate, basis: Basis) -> Estimate:
    """The estimate, without its interval where steps are not stationary or repeats are equal."""
    return estimate if basis == "repeats" else replace(estimate, low=None, high=None, basis=basis)
