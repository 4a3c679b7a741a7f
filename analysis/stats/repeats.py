"""Spread of the repeats of a configuration: repeats that a comparison needs, and two groups among them.

>>> repeats_needed(0.01, 0.05), repeats_needed(0.01, 0.02)
(3, 6)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.special import nctdtr

from analysis.stats.estimates import t_quantile

POWER = 0.8
"""Probability that a comparison settles an effect for which it has repeats enough."""

MOST_REPEATS = 100

GROUPS_APART = 8
"""Repeats fall into two groups if the gap between them is so many times the range of either group: at most
2 % of equal repeats do."""

GROUPS_MARGIN = 0.03
"""Smallest gap between two groups, as a share of the lower one."""


def spread_of(groups: Iterable[Sequence[float]]) -> float | None:
    """Standard deviation of the logarithm of a repeat, pooled over groups of repeats; None without a pair."""
    logs = [np.log(group) for group in groups if len(group) > 1]
    if not logs:
        return None
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in logs)
    return float(np.sqrt(squares / sum(each.size - 1 for each in logs)))


def repeats_needed(spread: float, effect: float) -> int | None:
    """Repeats a side for which a t test settles a difference of `effect` with a probability of 80 %.

    Args:
        spread: standard deviation of the logarithm of a repeat, such as 0.01 for 1 %.
        effect: relative difference of two throughputs, such as 0.05 for 5 %.

    Returns:
        At least 2; None above `MOST_REPEATS`.
    """
    for repeats in range(2, MOST_REPEATS + 1):
        distance = np.log1p(effect) / max(spread, 1e-9) / np.sqrt(2 / repeats)
        freedom = 2 * repeats - 2
        if 1 - nctdtr(freedom, min(distance, 1e3), t_quantile(freedom)) >= POWER:
            return repeats
    return None


def two_groups(values: Sequence[float]) -> tuple[float, float] | None:
    """Means of two groups of repeats, split at the largest gap; None without such groups, or for fewer than
    four values."""
    known = np.sort(np.asarray(values, dtype=np.float64))
    if known.size < 4:
        return None
    split = 1 + int(np.argmax(np.diff(known)))
    low, high = known[:split], known[split:]
    gap = high[0] - low[-1]
    apart = gap > max(GROUPS_APART * np.ptp(low), GROUPS_APART * np.ptp(high), GROUPS_MARGIN * low.mean())
    return (float(low.mean()), float(high.mean())) if apart and min(low.size, high.size) > 1 else None
