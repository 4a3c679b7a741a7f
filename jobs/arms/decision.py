"""Sequential verdict on paired durations: gain, loss, equivalent, or undecided. Standard library only.

A pair is one block of steps with a setting and one without, in random order. Its log ratio is
`log(seconds per step without / with)`: above 0, the setting is faster.

The interval is a confidence sequence for the median log ratio: at level `alpha`, it contains the median after
every pair at once with probability 1 - `alpha`, so that looking after each pair and stopping at any of them
is valid. A repeated t or bootstrap interval is not. Construction: of n log ratios, the number above the true
median is Binomial(n, 1/2); the likelihood ratio of a Beta(a, a) mixture against 1/2 is a martingale of mean
1, and exceeds 1/`alpha` at any time with probability `alpha` at most.

- Confidence sequence of the median by order statistics: Darling and Robbins (1967), "Confidence sequences for
  mean, variance, and median", PNAS 58, 66-68.
- Mixture martingale and maximal inequality: Ville (1939); Robbins (1970), "Statistical methods related to the
  law of the iterated logarithm", Annals of Mathematical Statistics 41, 1397-1409.
- The same for quantiles with the beta-binomial mixture: Howard and Ramdas (2022), "Sequential estimation of
  quantiles with applications to A/B testing and best-arm identification", Bernoulli 28, 1704-1728.

The order within each pair is random, each order with probability 1/2. For equal arms, each sign of a log
ratio then has probability 1/2 given all earlier blocks, for noise of any distribution, correlation or drift:
nothing is assumed of the machine.
With an effect, the assumption is that the effect adds to the logarithm.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

Verdict = Literal["gain", "loss", "equivalent", "undecided"]

MARGIN = 0.01
"""Ratios between 1 / 1.01 and 1.01 are equivalent."""
LEVEL = 0.05
"""Probability of a wrong verdict, over all comparisons of an experiment."""
_CONCENTRATION = 2.0
"""Parameter `a` of the Beta(a, a) mixture: near the narrowest interval at 20 to 100 pairs."""


@dataclass(frozen=True)
class Decision:
    """State of a comparison after some pairs."""

    verdict: Verdict
    ratio: float | None
    """Median of seconds without / with the setting; above 1, the setting is faster. None without pairs."""
    low: float | None
    """Ends of the confidence sequence of the ratio; None for too few pairs."""
    high: float | None
    pairs: int


def decide(log_ratios: Sequence[float], *, margin: float = MARGIN, alpha: float = LEVEL) -> Decision:
    """The verdict after these pairs.

    `gain`: the interval lies above 1 + margin; `loss`: below 1 / (1 + margin); `equivalent`: between them.
    The probability that any verdict of a whole sequence is wrong is `alpha` at most.
    """
    if not log_ratios:
        return Decision("undecided", None, None, None, 0)
    middle = math.exp(statistics.median(log_ratios))
    interval = median_interval(log_ratios, alpha)
    if interval is None:
        return Decision("undecided", middle, None, None, len(log_ratios))
    low, high = interval
    bound = math.log1p(margin)
    verdict: Verdict = "undecided"
    if low > bound:
        verdict = "gain"
    elif high < -bound:
        verdict = "loss"
    elif -bound <= low and high <= bound:
        verdict = "equivalent"
    return Decision(verdict, middle, math.exp(low), math.exp(high), len(log_ratios))


def median_interval(values: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """Ends of the confidence sequence of the median at the present number of values; None if too few."""
    count = needed_on_one_side(len(values), alpha)
    if count is None:
        return None
    ordered = sorted(values)
    return ordered[len(values) - count], ordered[count - 1]


@cache
def needed_on_one_side(n: int, alpha: float) -> int | None:
    """Smallest number of `n` values on one side of a point which excludes the point as the median.

    None if even `n` do not. The evidence of k on one side is
    2^n B(k + a, n - k + a) / B(a, a), with B the beta function; it excludes the point from 1/`alpha` on.
    """
    for k in range(n // 2 + 1, n + 1):
        evidence = n * math.log(2) + _log_beta(k, n - k) - _log_beta(0, 0)
        if evidence >= -math.log(alpha):
            return k
    return None


def _log_beta(above: int, below: int) -> float:
    a, b = above + _CONCENTRATION, below + _CONCENTRATION
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
