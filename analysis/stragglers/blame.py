"""Waiting charged to late ranks in equal parts, without remainder.

Order the arrivals a(1) <= ... <= a(N) of a step. During the gap between a(i) and a(i+1), i ranks wait for
N - i; each absent rank is charged i / (N - i) of the gap. The charges sum to the waiting of all ranks,
sum_r (max a - a_r). A rank is charged only for the time before its own arrival.
"""

from __future__ import annotations

import numpy as np

from analysis.stats.estimates import Floats


def equal_blame(arrival_s: Floats) -> Floats:
    """Rank-seconds of waiting that each rank is charged with in each step.

    Args:
        arrival_s: (ranks, steps), seconds from any instant common to the ranks of a step.

    Returns: (ranks, steps), at least 0. O(ranks log ranks) a step.
    """
    ranks = arrival_s.shape[0]
    order = np.argsort(arrival_s, axis=0)
    gaps = np.diff(np.take_along_axis(arrival_s, order, axis=0), axis=0)
    arrived = np.arange(1, ranks)[:, None]
    charges = np.zeros_like(arrival_s)
    charges[1:] = np.cumsum(gaps * arrived / (ranks - arrived), axis=0)
    blame = np.empty_like(arrival_s)
    np.put_along_axis(blame, order, charges, axis=0)
    return blame


def waiting(arrival_s: Floats) -> Floats:
    """Seconds that each rank waits for the last one in each step: (ranks, steps)."""
    return np.asarray(arrival_s.max(axis=0) - arrival_s)
