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

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

CONFIDENCE = 0.95
"""Nominal coverage of all intervals."""

Floats = NDArray[np.float64]


Basis = Literal["repeats", "within run", "not stationary", "maximum"]
"""Basis of an interval: the spread between repeats, or between the steps of one run (of a rank against the
others of that run). The mean of a run that is not stationary has no interval; neither has the maximum of all
repeats."""


class LogMoments(NamedTuple):
    """An estimated logarithm."""

    centre: float
    variance: float
    """Variance of `centre`; NaN if unknown."""
    freedom: float
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

    def scaled(self, factor: float) -> Estimate:
        """The estimate of `factor` times the quantity."""
        low, high = self.low, self.high
        return Estimate(
            self.value * factor,
            None if low is None else low * factor,
            None if high is None else high * factor,
            self.repeats,
            self.basis,
        )

    def inverse(self, numerator: float = 1.0) -> Estimate:
        """The estimate of `numerator` divided by the quantity; the bounds swap."""
        low, high = self.low, self.high
        return Estimate(
            numerator / self.value,
            None if high is None else numerator / high,
            None if low is None else numerator / low,
            self.repeats,
            self.basis,
        )


def t_quantile(freedom: ArrayLike, confidence: float = CONFIDENCE) -> Floats:
    """Half width of a two-sided interval of Student's t in standard errors."""
    half: Floats = stdtrit(freedom, 0.5 + confidence / 2)
    return half


class Bounds(NamedTuple):
    """Point estimates and interval bounds, one per series; NaN without an interval."""

    value: Floats
    low: Floats
    high: Floats


def mean_bounds(values: ArrayLike, confidence: float = CONFIDENCE) -> Bounds:
    """Geometric mean over the last axis (repeats) with a t interval on the logarithms."""
    centre, variance, repeats = _log_moments(values)
    return _bounds(centre, variance, np.broadcast_to(np.float64(repeats - 1), centre.shape), confidence)


def ratio_bounds(values: ArrayLike, base: ArrayLike, confidence: float = CONFIDENCE) -> Bounds:
    """Ratio of two geometric means over the last axis, as a difference of logarithms.

    Both sides are independent and may differ in number and spread: degrees of freedom by Welch (1947).
    """
    centre, variance, repeats = _log_moments(values)
    base_centre, base_variance, base_repeats = _log_moments(base)
    total = variance + base_variance
    with np.errstate(invalid="ignore"):
        freedom = total**2 / (variance**2 / (repeats - 1) + base_variance**2 / (base_repeats - 1))
    return _bounds(centre - base_centre, total, freedom, confidence)


def geometric_mean(values: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """`mean_bounds` of one series."""
    return _estimate(mean_bounds(values, confidence), np.size(values))


def share_mean(values: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Arithmetic mean of shares over repeats with Student's t; a share may be zero, so without logarithms.

    The interval ends at 0.
    """
    shares = np.asarray(values, dtype=np.float64)
    centre = float(shares.mean())
    if shares.size == 1:
        return Estimate(centre, None, None, 1)
    half = float(t_quantile(shares.size - 1, confidence) * shares.std(ddof=1))
    half /= float(np.sqrt(shares.size))
    return Estimate(centre, max(0.0, centre - half), centre + half, shares.size)


def ratio_of_means(values: ArrayLike, base: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Mean of `values` / mean of `base` over the same repeats: ratios themselves are not averaged.

    Student's t on the linearized ratio (delta method). The interval ends at 0.
    """
    upper, lower = (np.asarray(each, dtype=np.float64) for each in (values, base))
    found = float(upper.mean() / lower.mean())
    if upper.size == 1:
        return Estimate(found, None, None, 1)
    spread = float(((upper - found * lower) / lower.mean()).std(ddof=1))
    half = float(t_quantile(upper.size - 1, confidence)) * spread / float(np.sqrt(upper.size))
    return Estimate(found, max(0.0, found - half), found + half, upper.size)


def ratio(values: ArrayLike, base: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """`ratio_bounds` of one pair of series."""
    return _estimate(ratio_bounds(values, base, confidence), min(np.size(values), np.size(base)))


def log_moments(values: ArrayLike) -> LogMoments:
    """Mean of the logarithms of one series of repeats, with the variance of that mean."""
    centre, variance, repeats = _log_moments(values)
    return LogMoments(float(centre), float(variance), repeats - 1.0)


def difference(moments: LogMoments, base: LogMoments) -> LogMoments:
    """Logarithm of the ratio of two independent quantities; degrees of freedom by Welch (1947)."""
    total = moments.variance + base.variance
    parts = [each.variance**2 / each.freedom for each in (moments, base) if each.variance > 0]
    freedom = total**2 / sum(parts) if parts else np.nan
    return LogMoments(moments.centre - base.centre, total, float(freedom))


def from_moments(moments: LogMoments, repeats: int, confidence: float = CONFIDENCE) -> Estimate:
    """The estimate of the quantity with this logarithm."""
    centre, variance, freedom = (np.asarray(value) for value in moments)
    return _estimate(_bounds(centre, variance, freedom, confidence), repeats)


def not_stationary(estimate: Estimate) -> Estimate:
    """The estimate without its interval, which would be that of a mean of different states."""
    return replace(estimate, low=None, high=None, basis="not stationary")


def _log_moments(values: ArrayLike) -> tuple[Floats, Floats, int]:
    """Mean of the logarithms, variance of that mean (NaN for one repeat), number of repeats."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    repeats = logs.shape[-1]
    centre = logs.mean(axis=-1)
    variance = logs.var(axis=-1, ddof=1) / repeats if repeats > 1 else np.full_like(centre, np.nan)
    return centre, variance, repeats


def _bounds(centre: Floats, variance: Floats, freedom: Floats, confidence: float) -> Bounds:
    half = t_quantile(freedom, confidence) * np.sqrt(variance)
    half = np.where(variance == 0, 0.0, half)  # no spread: degrees of freedom are 0/0, the width is zero
    return Bounds(np.exp(centre), np.exp(centre - half), np.exp(centre + half))


def _estimate(bounds: Bounds, repeats: int) -> Estimate:
    value, low, high = (float(bound) for bound in bounds)
    if np.isnan(low):
        return Estimate(value, None, None, repeats)
    return Estimate(value, low, high, repeats)
