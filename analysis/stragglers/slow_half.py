"""Half of the nodes that is slower than the other half.

Slow ranks that are half of all are a large part of each other's reference (`outliers`). Two halves are
therefore compared directly. The slower half of the nodes, by their means, is slow when, together,

    the two halves, each as the mean of its ranks in every step, pass the rule of `outliers` for two ranks,
    the gap between the nodes of both halves exceeds three times the range of the nodes within a half, and
    Welch's t test of the ranks' means (on logarithms) has p below 1 %, divided by the number of halvings.

Of two ranks a half, Welch's test has two degrees of freedom. There, the gap between the ranks of both halves
has to exceed three times the range of the ranks within a half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb

import numpy as np

from analysis.stats.estimates import Floats, ratio_bounds
from analysis.stragglers.outliers import FALSE_ALARMS, find_outliers

GAP = 3.0
"""Smallest gap between the halves, in ranges within a half."""


def slow_half(own_s: Floats, nodes: Mapping[str, Sequence[int]]) -> list[int]:
    """Ranks of the slower half of the nodes, of own seconds (ranks, steps); empty where no half is slow.

    `nodes`: the ranks of each node. An odd number of nodes has no halves; nodes of one rank are left to
    `outliers.slow_ranks`.
    """
    if len(nodes) % 2 or min(map(len, nodes.values()), default=0) < 2:
        return []
    means = own_s.mean(axis=1)
    order = sorted(nodes.values(), key=lambda ranks: float(means[ranks].mean()))
    half = len(order) // 2
    fast, slow = (np.concatenate(each).astype(int) for each in (order[:half], order[half:]))
    of_nodes = np.array([means[ranks].mean() for ranks in order])
    if len(slow) > len(fast) or not _apart(of_nodes[:half], of_nodes[half:]):
        return []
    if len(slow) == 2:
        differ = _apart(means[fast], means[slow])
    else:
        confidence = 1 - FALSE_ALARMS / (comb(len(order), half) / 2)
        differ = bool(ratio_bounds(means[slow], means[fast], confidence).low > 1)
    halves = np.stack([own_s[fast].mean(axis=0), own_s[slow].mean(axis=0)])
    return sorted(slow.tolist()) if differ and find_outliers(halves).slow[1] else []


def _apart(fast: Floats, slow: Floats) -> bool:
    return bool(slow.min() - fast.max() > GAP * max(np.ptp(fast), np.ptp(slow)))
