"""Estimates over repeats of a run, with intervals whose unit is the run.

Steps of one run are correlated (placement, clocks, neighbours), so intervals over pooled steps are too
narrow: with 1 % spread between repeats, a nominal 95 % interval over pooled steps covers about half the time.
Here each repeat gives one number, and the spread between repeats gives the interval: Student's t on
logarithms, because rates and durations are positive and are compared by ratios.

The mean of the steps of one run has an interval *within the run*, by batch means: means of long batches are
nearly independent, and Student's t on them covers. The spread between repeats is not in it: where repeats
differ by 2 to 5 %, it covers the mean of all repeats in 6 to 60 %. It is neither drawn nor tested.

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

BATCHES = 10

LONG_BATCHES = 5
"""Batches of double length, where the means of the others are correlated."""

MIN_STEPS = 30
"""Fewer steps give too small a variance: their batches of one or two steps are correlated."""

LEAST_STEPS = 4
"""Fewer steps have no interval at all."""

MAX_LAG_1 = 0.2
"""Lag-1 autocorrelation of batch means above which batches have double length."""

Floats = NDArray[np.float64]


Basis = Literal["repeats", "within run", "not stationary", "equal repeats", "maximum"]
"""Basis of an interval: the spread between repeats, or between the steps of one run (of a rank against the
others of that run). The mean of a run that is not stationary has no interval; neither have repeats that are
equal to the last digit, which shows how they were rounded, and the maximum of all repeats."""


class Moments(NamedTuple):
    """Means over repeats of one or several series, or differences of such means."""

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


def moments(values: ArrayLike) -> Moments:
    """Means over the last axis (repeats), with the variances of these means."""
    series = np.asarray(values, dtype=np.float64)
    freedom = series.shape[-1] - 1
    variance = series.var(axis=-1) / freedom if freedom else np.full(series.shape[:-1], np.nan)
    return Moments(series.mean(axis=-1), variance, np.asarray(float(freedom)))


def log_moments(values: ArrayLike) -> Moments:
    """`moments` of logarithms."""
    return moments(np.log(np.asarray(values, dtype=np.float64)))


def difference(one: Moments, base: Moments) -> Moments:
    """Differences of two independent means; of logarithms, ratios.

    Both sides may differ in the number and spread of their repeats: degrees of freedom by Welch (1947).
    """
    total = one.variance + base.variance
    with np.errstate(invalid="ignore"):  # no spread on both sides: 0 / 0
        parts = [(each.variance / total) ** 2 / each.freedom for each in (one, base)]
        return Moments(one.centre - base.centre, total, 1 / np.sum(parts, axis=0))


def half_width(mean: Moments, confidence: float = CONFIDENCE) -> Floats:
    """Half width of the interval by Student's t; NaN where the variance is unknown."""
    return np.where(mean.variance == 0, 0.0, t_quantile(mean.freedom, confidence) * np.sqrt(mean.variance))


def bounds(logs: Moments, confidence: float = CONFIDENCE) -> tuple[Floats, Floats, Floats]:
    """The quantities with these logarithms, and the lower and upper bounds of their intervals."""
    half = half_width(logs, confidence)
    return np.exp(logs.centre), np.exp(logs.centre - half), np.exp(logs.centre + half)


def from_moments(logs: Moments, repeats: int, confidence: float = CONFIDENCE) -> Estimate:
    """`bounds` of one quantity."""
    value, low, high = map(float, bounds(logs, confidence))
    return Estimate(value, None, None, repeats) if np.isnan(low) else Estimate(value, low, high, repeats)


def geometric_mean(values: ArrayLike) -> Estimate:
    """Geometric mean over repeats."""
    return from_moments(log_moments(values), np.size(values))


def ratio(values: ArrayLike, base: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Ratio of two geometric means over repeats."""
    logs = difference(log_moments(values), log_moments(base))
    return from_moments(logs, min(np.size(values), np.size(base)), confidence)


def within(
    value: float, mean: Moments, repeats: int, least: float = -np.inf, most: float = np.inf
) -> Estimate:
    """`value` with the interval of a mean around it, within these limits."""
    half = float(half_width(mean))
    if np.isnan(half):
        return Estimate(value, None, None, repeats)
    return Estimate(value, max(least, value - half), min(most, value + half), repeats)


def share_mean(values: ArrayLike) -> Estimate:
    """Arithmetic mean of shares over repeats with Student's t; a share may be zero, so without logarithms.

    The interval ends at 0.
    """
    return ratio_of_means(values, np.ones(np.shape(values)))


def ratio_of_means(values: ArrayLike, base: ArrayLike) -> Estimate:
    """Mean of `values` / mean of `base` over the same repeats: ratios themselves are not averaged.

    Student's t on the linearized ratio (delta method). The interval ends at 0.
    """
    upper, lower = (np.asarray(side, dtype=np.float64) for side in (values, base))
    mean = float(upper.mean() / lower.mean())
    return within(mean, moments((upper - mean * lower) / lower.mean()), upper.size, least=0.0)


def on_basis(estimate: Estimate, basis: Basis) -> Estimate:
    """The estimate, without its interval where steps are not stationary or repeats are equal."""
    return estimate if basis == "repeats" else replace(estimate, low=None, high=None, basis=basis)


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
