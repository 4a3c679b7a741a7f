"""Ranks that are slower than the others in most of a run, and the smallest excess that the search finds.

The deviation of a rank is its own seconds minus the median of the other ranks' in the same step. A rank is
slow when, together,

    its mean deviation exceeds 3.5 robust standard deviations of the other ranks' means (1.4826 MAD),
    its mean exceeds the median of the others by more than 3 %,
    the same 3 % holds in at least 60 % of the windows of the run,
    the interval of its mean deviation excludes 0, and
    either it, or its node, is last more often than equal ranks are (binomial test, Benjamini and Hochberg
    1995), and Student's t on as many independent steps as the correlated ones are worth excludes 0,
    or its mean deviation exceeds twelve standard deviations of its jitter: few independent steps show that.

The rule with median and MAD is Iglewicz and Hoaglin's modified z-score (1993). Leaving the rank itself out
makes the rule hold for two and three ranks, where the rank would be half of its own reference.

Slow ranks that are half of all are a large part of each other's reference. Two halves of the nodes are
therefore compared directly (`slow_half`). Matrices of own seconds have the shape (ranks, steps).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, bdtrik, stdtrit

from analysis.stats.estimates import CONFIDENCE, Estimate, Floats, ratio_bounds
from analysis.stats.verdicts import benjamini_hochberg

LARGEST_Z = 3.5
LEAST_EXCESS = 0.03
"""Excess over the median of the others, as a fraction."""
LEAST_WINDOWS = 0.6
WINDOWS = 10
LEAST_STEPS = 4
FALSE_DISCOVERIES = 0.05
FALSE_ALARMS = 0.01
"""Probability that any of equal ranks exceeds the others by Student's t."""
FAR = 12.0
"""Standard deviations of the jitter that equal ranks do not differ by, however correlated their steps are."""
HALF_GAP = 3.0
"""Smallest gap between two halves of the nodes, in ranges within a half."""
TARGET_EXCESS = 0.1
"""Excess that a search has to find before it may state that no rank is slow, as a fraction of own work."""
_FOUND = 0.84
"""Standard normal quantile of 80 %: an excess this many standard errors above its limit is found in 80 %."""
_IN_WINDOWS = 1.5
"""The same for a limit that 60 % of ten windows have to exceed."""
_MOST_STEPS = 1_000_000
_LEAST_SCALE = 1e-3
"""Smallest robust standard deviation, as a fraction of the median: equal ranks have none."""


def median_of_others(values: Floats) -> Floats:
    """For each row, the median over the other rows; the shape of `values`. Needs two rows."""
    order = np.argsort(np.argsort(values, axis=0), axis=0)
    ordered = np.sort(values, axis=0)
    others = len(values) - 1
    middle = ((others - 1) // 2, others // 2)
    return np.asarray(sum(np.where(order <= at, ordered[at + 1], ordered[at]) for at in middle) / 2)


def last_shares(own_s: Floats) -> Floats:
    """Share of the steps in which each rank is last, of shape (ranks,); ranks that tie share their step."""
    last = own_s == own_s.max(axis=0)
    return np.asarray((last / last.sum(axis=0)).mean(axis=1))


def mean_interval(series_s: Floats) -> Estimate:
    """Mean of the steps of one run with a 95 % interval by batch means: Student's t over at most ten means of
    consecutive steps. The mean may be negative. Fewer than four steps have no interval."""
    value, steps = float(np.mean(series_s)), len(series_s)
    if steps < LEAST_STEPS:
        return Estimate(value, None, None, 1)
    batches = min(10, steps // 2, max(5, steps // 4))
    means = np.array([part.mean() for part in np.array_split(series_s, batches)])
    half = float(stdtrit(batches - 1, 0.5 + CONFIDENCE / 2) * means.std(ddof=1) / np.sqrt(batches))
    return Estimate(value, value - half, value + half, 1, "within run")


def correlation(series_s: Floats) -> float:
    """Autocorrelation at lag 1 of each row, median over the rows; from 0 to 0.98.

    The median ignores the few rows that change their level, such as a rank that is slow for a while. The
    estimate from n steps about their own mean is too small by (1 + 4 r) / n (Kendall 1954), which is added.
    """
    steps = series_s.shape[1]
    centred = series_s - series_s.mean(axis=1, keepdims=True)
    total = (centred**2).sum(axis=1)
    lagged = (centred[:, 1:] * centred[:, :-1]).sum(axis=1)
    median = float(np.median(lagged / np.maximum(total, np.finfo(float).tiny)))
    return float(np.clip((median + 1 / steps) / (1 - min(4 / steps, 0.5)), 0.0, 0.98))


def slow_ranks(own_s: Floats, nodes: Mapping[str, Sequence[int]] | None = None) -> list[int]:
    """All slow ranks of own seconds. `nodes`: the ranks of each node.

    The slowest is found first and left out of the next search, because only one rank of a step is last. At
    least half of the ranks stay: a majority is the reference.
    """
    if own_s.shape[1] < LEAST_STEPS:
        return []
    left = np.arange(len(own_s))
    while len(left) >= 2:
        of_nodes = [np.flatnonzero(np.isin(left, ranks)) for ranks in (nodes or {}).values()]
        slow = _slow(own_s[left], [ranks for ranks in of_nodes if len(ranks)])
        if not slow.any():
            break
        left = left[~slow]
    return sorted(set(range(len(own_s))) - set(left.tolist())) if 2 * len(left) >= len(own_s) else []


def slow_half(own_s: Floats, nodes: Mapping[str, Sequence[int]]) -> list[int]:
    """Ranks of the slower half of the nodes; empty where no half is slow.

    The slower half by the means of its nodes is slow when the halves, each as the mean of its ranks in every
    step, pass the rule for two ranks; the gap between the nodes of both halves exceeds three times the range
    of the nodes within a half; and Welch's t test of the ranks' means (on logarithms) has p below 1 %, over
    the number of halvings. Of two ranks a half, that test has two degrees of freedom: there, the gap between
    the ranks has to exceed three times their range. An odd number of nodes has no halves, and nodes of one
    rank are left to `slow_ranks`.
    """
    if len(nodes) % 2 or min(map(len, nodes.values()), default=0) < 2:
        return []
    means = own_s.mean(axis=1)
    order = sorted(nodes.values(), key=lambda ranks: float(means[ranks].mean()))
    half = len(order) // 2
    fast, slow = (np.concatenate(part).astype(int) for part in (order[:half], order[half:]))
    of_nodes = np.array([means[ranks].mean() for ranks in order])
    if len(slow) > len(fast) or not _apart(of_nodes[:half], of_nodes[half:]):
        return []
    if len(slow) == 2:
        differ = _apart(means[fast], means[slow])
    else:
        confidence = 1 - FALSE_ALARMS / (comb(len(order), half) / 2)
        differ = bool(ratio_bounds(means[slow], means[fast], confidence).low > 1)
    halves = np.stack([own_s[fast].mean(axis=0), own_s[slow].mean(axis=0)])
    return sorted(slow.tolist()) if differ and slow_ranks(halves) == [1] else []


def _apart(fast: Floats, slow: Floats) -> bool:
    return bool(slow.min() - fast.max() > HALF_GAP * max(np.ptp(fast), np.ptp(slow)))


class Sensitivity(NamedTuple):
    """Smallest mean excess of one slow rank that the search finds in 80 % of such runs."""

    excess_s: float
    own_s: float
    """Median own seconds of a step."""
    more_steps: int | None
    """Recorded steps to add until an excess of a tenth is found; 0 if it is found, None if no number of steps
    suffices, because the ranks differ by themselves."""

    @property
    def share(self) -> float:
        return self.excess_s / self.own_s if self.own_s else np.inf

    @property
    def suffices(self) -> bool:
        """Whether a rank that is slower by a tenth would have been found."""
        return self.share <= TARGET_EXCESS


def sensitivity(own_s: Floats, steps_per_column: float = 1.0) -> Sensitivity:
    """Sensitivity of `slow_ranks` on own seconds, from the limits of its rule at this jitter."""
    (ranks, steps), usual = own_s.shape, float(np.median(own_s))
    deviation = own_s - median_of_others(own_s)
    lag_1, deviates_s = correlation(deviation), float(deviation.std(axis=1).max())
    far_s = float(_jitter_s(deviation, lag_1).max())
    equal_s = np.sort(own_s - own_s.mean(axis=1, keepdims=True), axis=0)
    until_last_s = np.sort((np.where(equal_s == equal_s[-1], equal_s[-2], equal_s[-1]) - equal_s).ravel())
    spread_s = float(np.median(_spread_of_others(own_s.mean(axis=1))))
    by_chance_s = (1 + 3 / ranks**0.5) * deviates_s / _independent(steps, lag_1) ** 0.5
    level_s = max(0.0, spread_s**2 - by_chance_s**2) ** 0.5

    def excess_s(steps: int) -> float:
        counted = _independent(steps, lag_1)
        error_s = deviates_s / counted**0.5
        chance_s = deviates_s * _chance(ranks, steps, lag_1) + _FOUND * error_s
        often = (np.ceil(bdtrik(1 - FALSE_DISCOVERIES / ranks, counted, 1 / ranks)) + 1) / counted
        often += _FOUND * (max(0.0, often * (1 - often)) / counted) ** 0.5
        last_s = until_last_s[int(often * (until_last_s.size - 1))] if often <= 1 else np.inf
        between_s = LARGEST_Z * (level_s**2 + error_s**2 * (ranks > 2)) ** 0.5
        in_windows_s = LEAST_EXCESS * usual + _IN_WINDOWS * error_s
        return max(min(far_s, max(chance_s, last_s)), between_s + _FOUND * error_s, in_windows_s)

    if steps < LEAST_STEPS or not usual:
        return Sensitivity(np.inf, usual, None)
    limit_s = TARGET_EXCESS * usual
    enough = bisect_left(range(_MOST_STEPS), True, lo=steps, key=lambda count: excess_s(count) <= limit_s)
    more = None if enough == _MOST_STEPS else round((enough - steps) * steps_per_column)
    return Sensitivity(excess_s(steps), usual, more)


def _slow(own_s: Floats, nodes: Sequence[NDArray[np.intp]]) -> NDArray[np.bool_]:
    """Whether each rank is slow by the rule of this module."""
    ranks, steps = own_s.shape
    deviation = own_s - median_of_others(own_s)
    means, excess_s = own_s.mean(axis=1), deviation.mean(axis=1)
    usual = median_of_others(means[:, None])[:, 0]
    spread_s = np.maximum(_spread_of_others(means), _LEAST_SCALE * np.abs(usual))
    stands_out = (means - usual > LARGEST_Z * spread_s) & (means > (1 + LEAST_EXCESS) * usual)
    stands_out &= _windows(own_s) >= LEAST_WINDOWS
    stands_out[stands_out] = [(mean_interval(row).low or 0.0) > 0 for row in deviation[stands_out]]
    if not stands_out.any():
        return stands_out
    lag_1 = correlation(deviation)
    beyond_chance = excess_s > deviation.std(axis=1) * _chance(ranks, steps, lag_1)
    last = _often_last(own_s, nodes, _independent(steps, lag_1))
    return np.asarray(stands_out & (beyond_chance & last | (excess_s > _jitter_s(deviation, lag_1))))


def _independent(steps: int, lag_1: float) -> int:
    """Number of independent steps with the variance of the mean of this many steps: first-order
    autoregression, n (1 - r) / (1 + r)."""
    return max(1, round(steps * (1 - lag_1) / (1 + lag_1)))


def _chance(ranks: int, steps: int, lag_1: float) -> float:
    """Mean deviation, in standard deviations of the steps, that none of equal ranks exceeds (Bonferroni).

    The correlation is taken one standard error (Bartlett 1946) above its estimate, because a few steps show
    too little of it. The deviations of N ranks from each other are worth N - 1 series.
    """
    bound = min(0.98, lag_1 + ((1 - lag_1**2) / (steps * (ranks - 1))) ** 0.5)
    tested = _independent(steps, bound)
    if tested < 2:
        return np.inf
    return float(-stdtrit(tested - 1, FALSE_ALARMS / ranks) / (tested - 1) ** 0.5)


def _jitter_s(deviation: Floats, lag_1: float) -> Floats:
    """`FAR` standard deviations of each rank's jitter.

    A short series varies less than its process. The standard deviation s is therefore at least that of
    first-order autoregression with the same mean square of the change between steps, 2 s^2 (1 - r).
    """
    change_s = np.sqrt((np.diff(deviation) ** 2).mean(axis=1)) if deviation.shape[1] > 1 else 0.0
    return np.asarray(FAR * np.maximum(deviation.std(axis=1), change_s / np.sqrt(2 * (1 - lag_1))))


def _spread_of_others(means: Floats) -> Floats:
    """For each rank, 1.4826 x median absolute deviation of the other ranks' means."""
    others = [np.delete(means, rank) for rank in range(len(means))]
    return np.array([1.4826 * np.median(np.abs(values - np.median(values))) for values in others])


def _windows(own_s: Floats) -> Floats:
    """Share of the windows in which each rank exceeds the others by more than 3 %."""
    parts = np.array_split(own_s, min(WINDOWS, own_s.shape[1]), axis=1)
    means = np.stack([part.mean(axis=1) for part in parts], axis=1)
    return np.asarray((means > (1 + LEAST_EXCESS) * median_of_others(means)).mean(axis=1))


def _often_last(own_s: Floats, nodes: Sequence[NDArray[np.intp]], counted: int) -> NDArray[np.bool_]:
    """Whether each rank, or the slowest rank of its node, is last more often than by chance: the ranks of a
    slow node share the last place."""
    often = _late(own_s, counted)
    if len(nodes) > 1:
        slowest = np.stack([own_s[ranks].max(axis=0) for ranks in nodes])
        for ranks, late in zip(nodes, _late(slowest, counted), strict=True):
            often[ranks] |= late
    return often


def _late(arrival_s: Floats, counted: int) -> NDArray[np.bool_]:
    """Binomial test of the share of steps in which each row alone is last, on `counted` independent steps."""
    last = arrival_s == arrival_s.max(axis=0)
    share = (last & (last.sum(axis=0) == 1)).mean(axis=1)
    p = bdtrc(np.ceil(share * counted) - 1, counted, 1 / len(arrival_s))
    return np.array(benjamini_hochberg(p)) < FALSE_DISCOVERIES
