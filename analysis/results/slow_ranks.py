"""Ranks that are slower than the others, throughout a run or for a while, and the smallest excess that the
search finds.

The deviation of a rank is its own seconds minus the median of the other ranks' in the same step. A rank is
slow throughout when, together, its mean own seconds, above the median of the other ranks' means,

    exceeds 3.5 robust standard deviations of the other ranks' means (1.4826 MAD),
    exceeds 3 % of their median, in at least 60 % of the windows of the run too, and
    exceeds chance: Student's t on as many independent steps as the correlated ones are worth,
    or twelve standard deviations of its jitter, which few independent steps cannot show.

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
from scipy.special import stdtrit

from analysis.stats.estimates import LEAST_STEPS, Floats, block_sums, lag_1, ratio

LARGEST_Z = 3.5
LEAST_EXCESS = 0.03
"""Excess over the median of the others, as a fraction."""
LEAST_WINDOWS = 0.6
WINDOWS = 10
FALSE_ALARMS = 0.01
"""Probability that any of equal ranks exceeds the others by Student's t."""
FAR = 12.0
"""Standard deviations of the jitter that equal ranks do not differ by, however correlated their steps are."""
HALF_LEVEL = 0.1
"""Level of the test of two halves, divided by their ranks: by simulation, 1 to 2 % of equal halves differ."""
HALF_GAP = 3.0
"""Smallest gap between two halves of the nodes, in ranges within a half."""
TARGET_EXCESS = 0.1
"""Excess that a search has to find before it may state that no rank is slow, as a fraction of own work."""
LEAST_EPISODE = 5
"""Steps of an episode, at least."""
LARGEST_SUM, LARGEST_SUM_OF_FEW, FEW_RANKS, SIXTHS = 2.4, 1.9, 4, 6
"""Largest sum of a segment by chance, in standard errors of the sum of all steps, of four ranks or more with
0.2 log(ranks) added: by simulation, 1 to 3 % of runs of equal ranks exceed it, and about 10 % of those whose
jitter drifts as a random walk."""
_FOUND = 0.84
"""Standard normal quantile of 80 %: an excess this many standard errors above its limit is found in 80 %."""
_IN_WINDOWS = 1.5
"""The same for a limit that 60 % of ten windows have to exceed."""
_MOST_STEPS = 1_000_000


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


def correlation(series_s: Floats) -> float:
    """Autocorrelation at lag 1 of each row, median over the rows; from 0 to 0.98.

    The median ignores the few rows that change their level, such as a rank that is slow for a while. The
    estimate from n steps about their own mean is too small by (1 + 4 r) / n (Kendall 1954), which is added.
    """
    steps = series_s.shape[1]
    median = float(np.median(lag_1(series_s)))
    return float(np.clip((median + 1 / steps) / (1 - min(4 / steps, 0.5)), 0.0, 0.98))


def slow_ranks(own_s: Floats) -> list[int]:
    """All ranks that are slow throughout.

    Slow ranks are left out of the next search, because they widen the spread of the others. At least half of
    the ranks stay: a majority is the reference.
    """
    left = np.arange(len(own_s))
    while len(left) >= 2 and own_s.shape[1] >= LEAST_STEPS and (slow := _slow(own_s[left])).any():
        left = left[~slow]
    return sorted(set(range(len(own_s))) - set(left.tolist())) if 2 * len(left) >= len(own_s) else []


def slow_half(own_s: Floats, nodes: Mapping[str, Sequence[int]]) -> list[int]:
    """Ranks of the slower half of the nodes; empty where no half is slow. `nodes`: the ranks of each node.

    The slower half by the means of its nodes is slow when the halves, each as the mean of its ranks in every
    step, pass the rule for two ranks; the gap between the nodes of both halves exceeds three times the range
    of the nodes within a half; and Welch's t test of the ranks' means (on logarithms) has p below 10 %, over
    the number of halvings and of ranks in a half. An odd number of nodes has no halves, and nodes of one rank
    are left to `slow_ranks`.
    """
    if len(nodes) % 2 or min(map(len, nodes.values()), default=0) < 2:
        return []
    means, half = own_s.mean(axis=1), len(nodes) // 2
    order = sorted(nodes.values(), key=lambda ranks: float(means[ranks].mean()))
    of_nodes = np.array([means[ranks].mean() for ranks in order])
    gap, within = of_nodes[half] - of_nodes[half - 1], (np.ptp(of_nodes[:half]), np.ptp(of_nodes[half:]))
    fast, slow = (np.concatenate(part).astype(int) for part in (order[:half], order[half:]))
    low = ratio(means[slow], means[fast], 1 - HALF_LEVEL / (comb(len(order), half) / 2 * slow.size)).low
    halves = np.stack([own_s[fast].mean(axis=0), own_s[slow].mean(axis=0)])
    differ = low is not None and low > 1 and gap > HALF_GAP * max(within)
    return sorted(slow.tolist()) if differ and slow_ranks(halves) == [1] else []


def find_episodes(own_s: Floats) -> dict[int, slice]:
    """Columns of at least five steps in which a rank is slow, by rank: one segment a rank, in runs of 20
    steps or more.

    The deviation of a rank minus its mean, so that a rank that is slow throughout has none, is cut to its
    segment with the largest sum. It exceeds chance when this sum, in standard errors of the sum of all steps,
    is above `LARGEST_SUM`. The standard error is by the means of sixths of the run, over the other ranks:
    they contain jitter that is correlated over any length, and drifts. Two or three ranks mirror each other,
    so that theirs is by the correlation of steps; of equal ranks, whose sums are those of a Brownian bridge,
    less than 5 % exceed 1.9 (Kuiper 1960). The ends of an episode are where the deviation crosses half of its
    level; then 60 % of its steps and its mean have to exceed 3 % of the median.
    """
    ranks, steps = own_s.shape
    if steps < 4 * LEAST_EPISODE:
        return {}
    deviation = own_s - median_of_others(own_s)
    means_s = deviation.mean(axis=1, keepdims=True)
    centred = deviation - means_s
    segments = _largest_segments(centred)
    sums = np.where(segments, centred, 0.0).sum(axis=1, keepdims=True)
    inside = np.maximum(segments.sum(axis=1, keepdims=True), 1)
    if ranks < FEW_RANKS:
        levels = np.where(segments, sums / inside, -sums / np.maximum(steps - inside, 1))
        # a change of level is no correlation
        independent = _independent(steps, correlation(centred - levels))
        chance_s = LARGEST_SUM_OF_FEW * steps * centred.std(axis=1) / independent**0.5
    else:
        sums_s, sizes = block_sums(centred, SIXTHS)
        sixths_s = np.abs(sums_s / sizes)
        of_others_s = np.array([np.median(np.delete(sixths_s, rank, axis=0)) for rank in range(ranks)])
        limit = LARGEST_SUM + 0.2 * np.log(ranks)
        chance_s = limit * steps * 1.4826 * of_others_s / SIXTHS**0.5
    segments = _largest_segments(deviation - (means_s + sums / inside) / 2)
    least_s = LEAST_EXCESS * float(np.median(own_s))
    episodes = {}
    for rank in np.flatnonzero(sums[:, 0] > chance_s).tolist():
        columns = np.flatnonzero(segments[rank])
        slow_s = deviation[rank, columns]
        if columns.size >= LEAST_EPISODE and slow_s.mean() > least_s < np.quantile(slow_s, 1 - LEAST_WINDOWS):
            episodes[rank] = slice(int(columns[0]), int(columns[-1]) + 1)
    return episodes


def _largest_segments(values: Floats) -> NDArray[np.bool_]:
    """The consecutive values of each row with the largest sum (maximum subarray, Kadane); none where all are
    negative."""
    total = np.pad(np.cumsum(values, axis=1), ((0, 0), (1, 0)))
    least, at = np.minimum.accumulate(total, axis=1), np.arange(total.shape[1])
    end = np.argmax(total - least, axis=1)[:, None]
    first = np.take_along_axis(np.maximum.accumulate(np.where(total == least, at, 0), axis=1), end, axis=1)
    return np.asarray((at[:-1] >= first) & (at[:-1] < end))


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
    if steps < LEAST_STEPS or not usual:
        return Sensitivity(np.inf, usual, None)
    lag_1, of_ranks_s, far_s = _jitter(own_s - median_of_others(own_s))
    deviates_s = float(of_ranks_s.max())
    by_chance_s = (1 + 3 / ranks**0.5) * deviates_s / _independent(steps, lag_1) ** 0.5
    spread_s = float(np.median(_spread_of_others(own_s.mean(axis=1))))
    level_s = max(0.0, spread_s**2 - by_chance_s**2) ** 0.5

    def excess_s(count: int) -> float:
        error_s = deviates_s / _independent(count, lag_1) ** 0.5
        chance_s = deviates_s * _chance(ranks, count, lag_1) + _FOUND * error_s
        between_s = LARGEST_Z * np.hypot(level_s, error_s * (ranks > 2)) + _FOUND * error_s
        return float(max(min(far_s.max(), chance_s), between_s, LEAST_EXCESS * usual + _IN_WINDOWS * error_s))

    limit_s = TARGET_EXCESS * usual
    enough = bisect_left(range(_MOST_STEPS), True, lo=steps, key=lambda count: excess_s(count) <= limit_s)
    more = None if enough == _MOST_STEPS else round((enough - steps) * steps_per_column)
    return Sensitivity(excess_s(steps), usual, more)


def _slow(own_s: Floats) -> NDArray[np.bool_]:
    """Whether each rank is slow by the rule of this module."""
    ranks, steps = own_s.shape
    lag_1, deviates_s, far_s = _jitter(own_s - median_of_others(own_s))
    chance_s = np.minimum(deviates_s * _chance(ranks, steps, lag_1), far_s)
    sums, sizes = block_sums(own_s, min(WINDOWS, steps))
    means_s = np.column_stack([own_s.mean(axis=1), sums / sizes])
    usual_s = median_of_others(means_s)
    above = means_s > (1 + LEAST_EXCESS) * usual_s
    limit_s = np.maximum(LARGEST_Z * _spread_of_others(means_s[:, 0]), chance_s)
    in_windows = above[:, 1:].mean(axis=1) >= LEAST_WINDOWS
    return np.asarray(((means_s - usual_s)[:, 0] > limit_s) & above[:, 0] & in_windows)


def _jitter(deviation: Floats) -> tuple[float, Floats, Floats]:
    """Jitter of ranks: correlation between steps, and by rank its standard deviation and `FAR` times that.

    A short series varies less than its process. For `far_s`, the standard deviation s is therefore at
    least that of first-order autoregression with the same mean square of the change between steps,
    2 s^2 (1 - r)."""
    lag_1, deviates_s = correlation(deviation), deviation.std(axis=1)
    change_s = np.sqrt((np.diff(deviation) ** 2).mean(axis=1) / (2 * (1 - lag_1)))
    return lag_1, deviates_s, FAR * np.maximum(deviates_s, change_s)


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


def _spread_of_others(means: Floats) -> Floats:
    """For each rank, 1.4826 x median absolute deviation of the other ranks' means."""
    others = np.array([np.delete(means, rank) for rank in range(len(means))])
    return np.asarray(1.4826 * np.median(np.abs(others - np.median(others, axis=1, keepdims=True)), axis=1))
