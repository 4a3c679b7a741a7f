"""Ranks that are slower than the others in most of the run.

The deviation of a rank is its own seconds minus the median of the other ranks' in the same step. A rank is
slow when, together,

    its mean deviation exceeds 3.5 robust standard deviations of the other ranks' (1.4826 MAD),
    its mean exceeds the median of the others by more than 3 %,
    the same 3 % holds in at least 60 % of the windows of the run,
    it is last more often than by chance (`late_share`), or its node's ranks are last together, and
    the confidence interval of its mean deviation excludes 0, and so does a t test of all ranks on as many
    independent steps as correlated ones are worth.

The rule with median and MAD is Iglewicz and Hoaglin's modified z-score (1993). Leaving the rank itself out
makes the rule hold for two and three ranks, where the rank would be half of its own reference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

from analysis.stats.estimates import Floats
from analysis.stragglers.intervals import SecondsInterval, correlation, independent_steps, mean_interval
from analysis.stragglers.late_share import LateShare, late_share

LARGEST_Z = 3.5
LEAST_EXCESS = 0.03
"""Excess over the median of the others, as a fraction."""
LEAST_WINDOWS = 0.6
WINDOWS = 10
FALSE_DISCOVERIES = 0.05
FALSE_ALARMS = 0.01
"""Probability that any of equal ranks exceeds the others by Student's t."""
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
    order = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
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
        found += (chosen := [rank for rank, is_slow in zip(left, slow, strict=True) if is_slow])
        if not chosen or 2 * len(found) > len(own_s):
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
    lag_1 = correlation(deviation)
    counted = independent_steps(own_s.shape[1], lag_1)
    late = late_share(own_s, counted)
    late_node = _late_nodes(own_s, nodes or {}, counted)
    slow = (z > LARGEST_Z) & (ratio > 1 + LEAST_EXCESS) & (windows >= LEAST_WINDOWS)
    slow &= (late.adjusted_p < FALSE_DISCOVERIES) | late_node
    slow &= np.array([interval.low is not None and interval.low > 0 for interval in excess], dtype=bool)
    slow &= _beyond_chance(deviation, counted)
    return Outliers(slow, excess, z, ratio, windows, late)


def _beyond_chance(deviation: Floats, counted: int) -> NDArray[np.bool_]:
    """Whether the mean of each row is above 0 by Student's t on as many independent steps (Bonferroni)."""
    if counted < 2:
        return np.zeros(len(deviation), dtype=bool)
    error = deviation.std(axis=1, ddof=1) / np.sqrt(counted)
    t = deviation.mean(axis=1) / np.maximum(error, np.finfo(float).tiny)
    return np.asarray(student_t.sf(t, counted - 1) < FALSE_ALARMS / len(deviation))


def smallest_excess_s(own_s: Floats) -> float:
    """Mean excess in seconds from which a persistently slow rank of own seconds (ranks, steps) is named."""
    means = own_s.mean(axis=1)
    usual = float(np.median(means))
    return max(LARGEST_Z * _robust_scale(means), LEAST_EXCESS * usual)


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
        for adjusted, ranks in zip(p, nodes.values(), strict=True):
            late[ranks] = adjusted < FALSE_DISCOVERIES
    return late
