"""Verdicts on comparisons: faster, slower, equivalent within a margin, or unsettled; repeats that they need.

- *Equivalent*: two one-sided t tests on the logarithms (TOST; Schuirmann 1987) place the ratio of throughputs
  between 1 / (1 + margin) and 1 + margin.
- *Faster* or *slower*: Welch's t test on the logarithms finds the ratio different from one.
- *Unsettled*: neither; more repeats are needed. One repeat on a side always is.

Equivalence goes first: with many repeats, a ratio of 1.001 differs from one and does not matter. Many
comparisons are corrected together by Benjamini and Hochberg (1995): controlled is the share of false findings
among all findings, not the chance of a single one. The best of k configurations, compared with the others, is
faster than they by chance; its p values are multiplied by k / 2.

    >>> verdicts([compare([200.0, 202.0, 201.0], [100.0, 101.0, 100.5])])
    ['faster']
    >>> verdicts([compare([200.0], [100.0])])
    ['unsettled']
    >>> repeats_needed(0.01, 0.05), repeats_needed(0.01, 0.02)
    (3, 6)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import nctdtr, stdtr

from analysis.stats.estimates import (
    CONFIDENCE,
    Estimate,
    difference,
    from_moments,
    log_moments,
    t_quantile,
)

Verdict = Literal["faster", "slower", "equivalent", "unsettled"]

EQUIVALENCE_MARGIN = 0.02
"""Ratios between 1 / 1.02 and 1.02 are equivalent by default."""

LEVEL = 1 - CONFIDENCE

POWER = 0.8
"""Probability that a comparison settles an effect for which it has repeats enough."""

MOST_REPEATS = 100

GROUPS_APART = 8
"""Repeats fall into two groups if the gap between them is so many times the range of either group: at most
2 % of equal repeats do."""

GROUPS_MARGIN = 0.03
"""Smallest gap between two groups, as a share of the lower one."""


@dataclass(frozen=True)
class Comparison:
    """Ratio of two throughputs with the p values of both tests; NaN without a spread between repeats."""

    ratio: Estimate
    p_difference: float
    """Two-sided: the ratio is one."""
    p_equivalence: float
    """The ratio is beyond the margin."""


def compare(values: ArrayLike, base: ArrayLike) -> Comparison:
    """Compare the throughputs of repeats with those of the base's repeats; both in samples/s."""
    logs = difference(log_moments(values), log_moments(base))
    centre, bound = logs.centre, np.log1p(EQUIVALENCE_MARGIN)
    # the ratio is not one, not below the upper bound, not above the lower bound
    distances = np.array([-np.abs(centre), centre - bound, -centre - bound])
    different, *outside = stdtr(logs.freedom, distances / np.sqrt(logs.variance or np.nan)).tolist()
    repeats = min(np.size(values), np.size(base))
    return Comparison(from_moments(logs, repeats), 2 * different, max(outside))


def verdicts(comparisons: Sequence[Comparison], best_of: int = 2) -> list[Verdict]:
    """The verdict on each comparison, with a share of false findings of at most 5 % among all of them.

    `best_of`: number of configurations of which the compared one is the best, 2 for one that was not chosen.
    Of ten equal configurations, the best is called faster than any other in at most 2 % (by simulation;
    without the correction in 4 to 9 %).
    """
    chosen = max(1.0, best_of / 2)
    different = benjamini_hochberg([min(chosen * each.p_difference, 1.0) for each in comparisons])
    equivalent = benjamini_hochberg([each.p_equivalence for each in comparisons])
    return [
        "equivalent"
        if same < LEVEL
        else ("faster" if each.ratio.value > 1 else "slower")
        if p < LEVEL
        else "unsettled"
        for each, p, same in zip(comparisons, different, equivalent, strict=True)
    ]


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values; NaN, a test that could not be made, stays NaN and does not count."""
    values = np.array(p_values, dtype=np.float64)
    order = np.argsort(values)[: np.count_nonzero(~np.isnan(values))]  # NaN comes last
    scaled = values[order] * order.size / np.arange(1, order.size + 1)
    values[order] = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    return [float(value) for value in values]


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


def repeats_within(values: ArrayLike, within: float) -> int:
    """Repeats for which the 95 % interval of a geometric mean is within +- `within`, at the spread of these
    values: as many as these if theirs is, at most `MOST_REPEATS`."""
    logs, count = np.log(np.asarray(values, dtype=np.float64)), np.size(values)
    repeats = np.arange(count, MOST_REPEATS)
    if count < 2:
        return 2
    half = t_quantile(repeats - 1) * logs.std(ddof=1) / np.sqrt(repeats)
    return int(count + np.count_nonzero(half > np.log1p(within)))


def two_groups(values: ArrayLike) -> tuple[float, float] | None:
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
