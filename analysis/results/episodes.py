"""Ranks that are slower than the others for a while: one range of steps each.

The deviation of a rank from the median of the others, minus its mean over the run, is cut to its segment with
the largest sum (maximum subarray, Kadane). The segment counts when its sum exceeds what the same deviations
reach in random order: steps are permuted in blocks, jointly for all ranks, and the largest sum over all ranks
is compared. Ranks that are found leave the comparison, which is then repeated for the others (step-down test,
Westfall and Young 1993): the long segment of one rank would hide a shorter one of another. A rank that is
slow throughout has no such segment, because its mean is subtracted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.results.slow_ranks import LEAST_EXCESS, LEAST_WINDOWS, correlation, median_of_others
from analysis.stats.estimates import Floats

LEAST_STEPS = 5
SIGNIFICANCE = 0.02
_MOST_COLUMNS = 200
"""More steps are averaged in groups first, so that a large run takes below a second."""
_WORK = 4e6
"""Elements that are permuted at most; it bounds the permutations of many ranks."""


class Episode(NamedTuple):
    """A rank is slow in the columns `first` to `last` of its matrix."""

    rank: int
    first: int
    last: int


def find_episodes(own_s: Floats, seed: int = 0) -> list[Episode]:
    """Segments of at least five steps in which a rank is slow. `own_s`: (ranks, steps)."""
    steps = own_s.shape[1]
    if steps < 4 * LEAST_STEPS:
        return []
    deviation = own_s - median_of_others(own_s)
    least_s = LEAST_EXCESS * float(np.median(own_s))
    groups = np.array_split(np.arange(steps), min(steps, _MOST_COLUMNS))
    grouped = np.stack([deviation[:, group].mean(axis=1) for group in groups], axis=1)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    episodes = []
    for rank in _beyond_chance(centred, seed):
        begin, end = _segment(centred[rank])
        # half-way between the two levels, so that jitter at the ends is not taken for the segment
        begin, end = _segment(grouped[rank] - grouped[rank, begin : end + 1].mean() / 2)
        if end < begin:
            continue
        first, last = int(groups[begin][0]), int(groups[end][-1])
        slow = (grouped[rank, begin : end + 1] > least_s).mean() >= LEAST_WINDOWS
        if slow and last - first + 1 >= LEAST_STEPS and deviation[rank, first : last + 1].mean() > least_s:
            episodes.append(Episode(rank, first, last))
    return episodes


def _beyond_chance(values: Floats, seed: int) -> list[int]:
    """Rows whose largest segment exceeds what random order gives in all rows that are not yet found."""
    sums, random = _largest_sums(values), np.random.default_rng(seed)
    lag_1 = correlation(_without_segments(values))
    left, beyond = np.arange(len(values)), np.array([True])
    while left.size and beyond.any():
        beyond = sums[left] > _limit(values[left], lag_1, random)
        left = left[~beyond]
    return sorted(set(range(len(values))) - set(left.tolist()))


def _largest_sums(values: Floats) -> Floats:
    """Largest sum of consecutive values in each row; 0 where all are negative."""
    total = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    return np.asarray((total - np.minimum.accumulate(total, axis=1)).max(axis=1))


def _without_segments(values: Floats) -> Floats:
    """Each row without the change of its level in its segment, which would count as correlation."""
    level = np.empty_like(values)
    for rank, row in enumerate(values):
        begin, end = _segment(row)
        inside = np.zeros(len(row), dtype=bool)
        inside[begin : end + 1] = True
        for part in (inside, ~inside):
            if part.any():
                level[rank, part] = row[part].mean()
    return np.asarray(values - level)


def _segment(values: Floats) -> tuple[int, int]:
    """First and last index of the consecutive values with the largest sum; (0, -1) if none is positive."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    last = int(np.argmax(total - np.minimum.accumulate(total)))
    return int(np.argmin(total[: last + 1])), last - 1


def _limit(values: Floats, lag_1: float, random: np.random.Generator) -> float:
    """Sum that the largest segment of any rank exceeds in random order with probability `SIGNIFICANCE`.

    Blocks are several times as long as the correlation of the steps. Few blocks have few orders, whose sums
    are too small. The limit is therefore at least that of single steps in random order times the ratio of the
    standard deviations of long sums: of first-order autoregression against independent steps.
    """
    steps = values.shape[1]
    times = int(np.clip(_WORK / values.size, 1 / SIGNIFICANCE, 400))
    length = max(steps ** (1 / 3), 3 * (1 + lag_1) / (1 - lag_1))
    blocks = np.array_split(np.arange(steps), max(4, int(steps / length)))
    single = np.array_split(np.arange(steps), steps)
    in_blocks, in_steps = (_permuted_sums(values, parts, times, random) for parts in (blocks, single))
    return max(in_blocks, in_steps * np.sqrt((1 + lag_1) / (1 - lag_1)))


def _permuted_sums(
    values: Floats, blocks: list[NDArray[np.intp]], times: int, random: np.random.Generator
) -> float:
    """Quantile of the largest sum over all ranks with the blocks in random order, one order for all ranks."""
    largest = []
    for _ in range(times):
        order = np.concatenate([blocks[index] for index in random.permutation(len(blocks))])
        largest.append(_largest_sums(values[:, order]).max())
    return float(np.quantile(largest, 1 - SIGNIFICANCE))
