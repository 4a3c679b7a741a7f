"""Ranks that are slower than the others in most of the run.

The deviation of a rank is its own seconds minus the median of the other ranks' in the same step. A rank is
slow when, together,

    its mean deviation exceeds 3.5 robust standard deviations of the other ranks' (1.4826 MAD),
    its mean exceeds the median of the others by more than 3 %,
    the same 3 % holds in at least 60 % of the windows of the run,
    the confidence interval of its mean deviation excludes 0, and
    either it is last more often than by chance (`late_share`), or its node's ranks are last together, and a t
    test of all ranks on as many independent steps as correlated ones are worth excludes 0,
    or its mean exceeds twelve standard deviations of its jitter, which few independent steps show as well.

The rule with median and MAD is Iglewicz and Hoaglin's modified z-score (1993). Leaving the rank itself out
makes the rule hold for two and three ranks, where the rank would be half of its own reference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

from analysis.stats.estimates import Floats
from analysis.stragglers.intervals import (
    SecondsInterval,
    correlation,
    correlation_bound,
    independent_steps,
    mean_interval,
)
from analysis.stragglers.late_share import LateShare, late_share

LARGEST_Z = 3.5
LEAST_EXCESS = 0.03
"""Excess over the median of the others, as a fraction."""
LEAST_WINDOWS = 0.6
WINDOWS = 10
FALSE_DISCOVERIES = 0.05
FALSE_ALARMS = 0.01
"""Probability that any of equal ranks exceeds the others by Student's t."""
FAR = 12.0
"""Standard deviations of the jitter that equal ranks do not differ by, however correlated their steps are."""
_LEAST_SCALE = 1e-3
"""Smallest robust standard deviation, as a fraction of the median: equal ranks have none."""


class Outliers(NamedTuple):
    """One value for each rank."""

    slow: NDArray[np.bool_]
    """Whether the rank is slow by all criteria."""
    excess_s: list[SecondsInterval]
    """Own seconds above the median of the other ranks, mean over steps."""
    z: Floats
    ratio: Floats
    """Mean own seconds / median of the other ranks' means."""
    windows: Floats
    """Share of the windows in which the rank exceeds the others by more than 3 %."""
    late: LateShare


def median_of_others(values: Floats) -> Floats:
    """For each row, the median over the other rows; the shape of `values`. Needs two rows."""
    rows = values.shape[0]
    order = np.argsort(np.argsort(values, axis=0), axis=0)
    ordered = np.sort(values, axis=0)
    others = rows - 1
    low, high = (others - 1) // 2, others // 2
    return np.asarray(sum(_without(ordered, order, index) for index in (low, high)) / 2)


def _without(ordered: Floats, position: NDArray[np.intp], index: int) -> Floats:
    """Element `index` of the ordered values without the one at `position`."""
    return np.asarray(np.where(position <= index, ordered[index + 1], ordered[index]))


def slow_ranks(own_s: Floats, nodes: dict[str, list[int]] | None = None) -> list[int]:
    """All slow ranks of own seconds (ranks, steps).

    The slowest is found first and left out of the next search, because only one rank of a step is last. At
    least half of the ranks stay: a majority is the reference.
    """
    left = [*range(len(own_s))]
    found: list[int] = []
    while len(left) >= 2:
        position = {rank: index for index, rank in enumerate(left)}
        of_nodes = {
            host: [position[rank] for rank in ranks if rank in position]
            for host, ranks in (nodes or {}).items()
        }
        slow = find_outliers(own_s[left], {host: ranks for host, ranks in of_nodes.items() if ranks}).slow
        found += (chosen := [left[index] for index in np.flatnonzero(slow)])
        if not chosen:
            break
        left = [rank for rank in left if rank not in chosen]
    return sorted(found) if 2 * len(found) <= len(own_s) else []


def find_outliers(own_s: Floats, nodes: dict[str, list[int]] | None = None) -> Outliers:
    """Test each rank of own seconds (ranks, steps) by the rule of this module.

    `nodes`: the ranks of each node. The ranks of a slow node share the last place, so they are tested as one.
    """
    deviation = own_s - median_of_others(own_s)
    excess = [mean_interval(row) for row in deviation]
    means = own_s.mean(axis=1)
    reference = median_of_others(means[:, None])[:, 0]
    spread = np.array([_robust_scale(np.delete(means, rank)) for rank in range(len(means))])
    ratio = means / np.maximum(reference, np.finfo(float).tiny)
    z = (means - reference) / np.maximum(spread, _LEAST_SCALE * np.abs(reference))
    windows = _windows(own_s)
    limits = _Limits.of(own_s, deviation)
    late = late_share(own_s, limits.counted)
    late_node = _late_nodes(own_s, nodes or {}, limits.counted)
    slow = (z > LARGEST_Z) & (ratio > 1 + LEAST_EXCESS) & (windows >= LEAST_WINDOWS)
    slow &= np.array([interval.low is not None and interval.low > 0 for interval in excess])
    mean_s = deviation.mean(axis=1)
    often_last = (late.adjusted_p < FALSE_DISCOVERIES) | late_node
    slow &= (often_last & (mean_s > limits.chance_s)) | (mean_s > limits.jitter_s)
    return Outliers(slow, excess, z, ratio, windows, late)


class _Limits(NamedTuple):
    """Mean deviations in seconds that equal ranks do not exceed, one for each rank."""

    counted: int
    """Independent steps that the correlated ones are worth."""
    chance_s: Floats
    """By Student's t (Bonferroni), on the independent steps at the upper bound of the correlation; infinite
    with fewer than two."""
    jitter_s: Floats
    """`FAR` standard deviations of the jitter."""

    @classmethod
    def of(cls, own_s: Floats, deviation: Floats) -> _Limits:
        """A short series varies less than its process. The standard deviation s is therefore at least that of
        first-order autoregression with the same mean square of the change between steps, 2 s^2 (1 - r)."""
        ranks, steps = own_s.shape
        lag_1 = correlation(deviation)
        counted = independent_steps(steps, lag_1)
        deviates_s = deviation.std(axis=1)
        change_s = np.sqrt((np.diff(deviation) ** 2).sum(axis=1) / max(1, steps - 1))
        jitter_s = FAR * np.maximum(deviates_s, change_s / np.sqrt(2 * (1 - lag_1)))
        tested = independent_steps(steps, correlation_bound(lag_1, ranks, steps))
        if tested < 2:
            return cls(counted, np.full(ranks, np.inf), jitter_s)
        t = student_t.isf(FALSE_ALARMS / ranks, tested - 1)
        return cls(counted, t * deviates_s / np.sqrt(tested - 1), jitter_s)


def smallest_excess_s(own_s: Floats) -> float:
    """Mean excess in seconds from which a persistently slow rank of own seconds (ranks, steps) is named.

    With few independent steps, a rank that is last in all of them is not last more often than by chance.
    """
    means = own_s.mean(axis=1)
    usual = float(np.median(means))
    limits = _Limits.of(own_s, own_s - median_of_others(own_s))
    often_last = len(own_s) ** (1.0 - limits.counted) < FALSE_DISCOVERIES
    chance_s = np.minimum(limits.chance_s, limits.jitter_s) if often_last else limits.jitter_s
    return max(LARGEST_Z * _robust_scale(means), LEAST_EXCESS * usual, float(chance_s.max()))


def _robust_scale(values: Floats) -> float:
    """1.4826 x median absolute deviation: the standard deviation of normal values."""
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def _windows(own_s: Floats) -> Floats:
    parts = np.array_split(own_s, min(WINDOWS, own_s.shape[1]), axis=1)
    means = np.stack([part.mean(axis=1) for part in parts], axis=1)
    return np.asarray((means > (1 + LEAST_EXCESS) * median_of_others(means)).mean(axis=1))


def _late_nodes(own_s: Floats, nodes: dict[str, list[int]], counted: int) -> NDArray[np.bool_]:
    """Whether each rank belongs to a node whose slowest rank is last more often than by chance."""
    late = np.zeros(own_s.shape[0], dtype=bool)
    if len(nodes) > 1:
        slowest = np.stack([own_s[ranks].max(axis=0) for ranks in nodes.values()])
        p = late_share(slowest, counted).adjusted_p
        for node, ranks in enumerate(nodes.values()):
            late[ranks] = p[node] < FALSE_DISCOVERIES
    return late
