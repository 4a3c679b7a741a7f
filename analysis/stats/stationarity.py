"""Stationarity of the measured steps of a run: blocks of steps against each other, and a proposed warm-up.

The mean of a run describes its machine only if the measured steps are stationary: a longer warm-up, a device
that grows hot or a neighbour that arrives make it an average of two states. The steps are cut into blocks
that are nearly independent, and the medians of the blocks, which a single long step does not change, are
compared by Student's t with the spread that the compared change leaves:

- each run of consecutive blocks against all others: a jump, two regimes, a bulge;
- a straight line: a drift;
- the first steps, fewer than a block, against all others: a short warm-up.

The largest t decides, with `LEVEL` divided by the number of comparisons (Bonferroni). A change below `MARGIN`
is tolerated. Where none is found, `Stationarity.unseen` has the smallest ones that would be: the noncentral t
of a drift, and of a jump after half of the steps, that exceeds the limit with a probability of `POWER`. Where
the first steps differ, MSER-5 (White, Cobb and Spratt, 2000) proposes a warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import nctdtrinc, ndtri

from analysis.stats.estimates import Floats, block_sums, lag_1, t_quantile

StationarityVerdict = Literal["stationary", "warm-up too short", "not stationary", "too few steps"]

BATCH = 5
"""Steps in one batch of MSER-5, and in the shortest block."""

MIN_BLOCKS, MAX_BLOCKS = 6, 24
"""Steps of fewer independent blocks are too few to tell."""

MIN_STEPS = 40
"""Fewer steps are too few to tell, however independent they are."""

BLOCK = 2.5
"""Length of a block in steps that are worth one independent step."""

MARGIN = 0.02
"""Changes of the duration up to this share are tolerated."""

LEVEL = 0.02
"""Nominal share of stationary runs that are refused. With the correlation of steps estimated, it is below 5 %
for first-order autoregressions up to a correlation of 0.8."""

POWER = 0.8
"""Probability that a change of the size of `Unseen` is found."""

PLAIN = 5.5
"""t of a change of twelve blocks that is removed, up to three times, before the correlation is estimated."""


class Change(NamedTuple):
    """A change of the duration of a part of the steps against all others, or from start to end."""

    is_drift: bool
    value: float
    """Share of the median step: 0.1 is 10 % longer."""
    first: int
    """Measured steps before the changed part."""
    end: int
    """Measured steps up to the end of the changed part."""


class Unseen(NamedTuple):
    """Smallest changes that are found in 80 % of such runs, as shares of the step."""

    drift: float
    """From start to end."""
    jump: float
    """After half of the steps."""


@dataclass(frozen=True)
class Stationarity:
    """Verdict on the measured steps of one run."""

    verdict: StationarityVerdict
    change: Change | None = None
    """Of a run that is not stationary or has too short a warm-up."""
    warm_up: int = 0
    """Measured steps that a longer warm-up would have to leave out, beyond the recorded one."""
    unseen: Unseen | None = None
    """Of a stationary run."""

    @property
    def publishable(self) -> bool:
        """Whether the mean of the measured steps may be published with an interval."""
        return self.verdict in ("stationary", "too few steps")


def stationarity(step_s: ArrayLike) -> Stationarity:
    """Whether the durations of the measured steps of a run, in order, are stationary."""
    series = np.asarray(step_s, dtype=np.float64)
    count = series.size // block_length(series) if series.size >= MIN_STEPS else 0
    if count < MIN_BLOCKS:
        return Stationarity("too few steps")
    change = _change(series / np.median(series), count)
    if change is None:
        return Stationarity("stationary", unseen=_unseen(series / np.median(series), count))
    drop = 0 if change.is_drift or change.first else mser5(series)
    if drop and stationarity(series[drop:]).publishable:
        return Stationarity("warm-up too short", change, drop)
    return Stationarity("not stationary", change)


def block_length(series: Floats) -> int:
    """Steps in a block: `BLOCK` times as many as are worth one independent step, at most `MAX_BLOCKS` blocks.

    Of a first-order autoregression, (1 + r) / (1 - r) steps are worth one. Its correlation r is that of the
    steps without plain changes and without the excess of long steps, corrected by twice the bias of an
    estimate from n steps (Kendall 1954), as the removal adds to it. A record of several steps shows
    as steps of equal duration.
    """
    left = series - _plain_changes(series)
    left = left - np.median(left)
    bound = 3 * 1.4826 * float(np.median(np.abs(left)))  # three standard deviations of normal steps
    found = float(lag_1(np.clip(left, -bound, bound)))
    correlation = min(max(found + 2 * (1 + 4 * found) / series.size, 0.0), 0.98)
    record = series.size // (1 + int(np.count_nonzero(np.diff(series))))
    independent = 1.0 if record == series.size else max((1 + correlation) / (1 - correlation), record)
    return max(BATCH, int(np.ceil(BLOCK * independent)), -(-series.size // MAX_BLOCKS))


def mser5(values: ArrayLike) -> int:
    """Number of leading values to drop: d* = argmin over d <= n/2 of sum_{i>d} (x_i - mean_{>d})^2 / (n-d)^2,
    with x the means of five values. A multiple of five; 0 for fewer than ten values."""
    series = np.asarray(values, dtype=np.float64)
    count = series.size // BATCH
    if count < 2:
        return 0
    batches = series[: count * BATCH].reshape(count, BATCH).mean(axis=1)
    centred = (batches - batches.mean())[::-1]
    counts = np.arange(1, count + 1)
    squares = np.cumsum(centred**2) - np.cumsum(centred) ** 2 / counts
    squares[squares <= 1e-12 * squares[-1]] = 0.0  # rounding; ties go to the shortest warm-up
    statistic = (squares / counts**2)[::-1]  # by d
    return BATCH * int(np.argmin(statistic[: count // 2 + 1]))


class _Shapes(NamedTuple):
    """Changes by one of so many blocks: jumps, and the drift as the last one."""

    centred: Floats
    """Shape (changes, blocks), with mean 0."""
    squares: Floats
    """Sums of squares of `centred`."""
    parts: list[tuple[int, int]]
    """First and end of each change."""


@lru_cache(maxsize=32)
def _shapes(count: int) -> _Shapes:
    # the last blocks are the complement of the first ones
    parts = [(first, end) for first in range(count) for end in range(first + 1, count)]
    at = np.arange(count)
    shapes = np.array([*((at >= first) & (at < end) for first, end in parts), at / (count - 1)])
    centred = shapes - shapes.mean(axis=1, keepdims=True)
    return _Shapes(centred, (centred**2).sum(axis=1), [*parts, (0, count)])


def _fit(blocks: Floats) -> tuple[float, float, int]:
    """The change of blocks with the largest t: this t, its size, and its index in `_shapes`."""
    centred, squares, _ = _shapes(blocks.size)
    changes = centred @ blocks / squares
    total = float(((blocks - blocks.mean()) ** 2).sum())
    left = np.maximum(total - squares * changes**2, 1e-20 * total) / (blocks.size - 2)
    t = np.abs(changes) * np.sqrt(squares / left) if total else np.zeros(squares.size)
    best = int(np.argmax(t))
    return float(t[best]), float(changes[best]), best


def _blocks(series: Floats, count: int) -> tuple[Floats, NDArray[np.intp]]:
    """Medians of so many blocks, and their numbers of steps, as `np.array_split` cuts them."""
    sizes = block_sums(series, count)[1]
    ordered = series[np.lexsort((series, np.repeat(np.arange(count), sizes)))]
    before = np.cumsum(sizes) - sizes
    return (ordered[before + (sizes - 1) // 2] + ordered[before + sizes // 2]) / 2, sizes


def _plain_changes(series: Floats) -> Floats:
    """The change of each step, but for a constant, by changes that are plain in twelve blocks."""
    blocks, sizes = _blocks(series, 12)
    changes = np.zeros(12)
    for _ in range(3):
        t, change, at = _fit(blocks - changes)
        if t >= PLAIN:
            changes += change * _shapes(12).centred[at]
    return np.repeat(changes, sizes)


def _threshold(count: int) -> float:
    """The t of a change by so many blocks that is none by chance."""
    return float(t_quantile(count - 2, 1 - LEVEL / len(_shapes(count).parts)))


def _unseen(series: Floats, count: int) -> Unseen:
    """For the spread of so many blocks of a series with the median 1."""
    squares = np.array([_shapes(count).squares[-1], count / 4])
    error = float(_blocks(series, count)[0].std(ddof=1)) / np.sqrt(squares)
    beyond_chance = nctdtrinc(count - 2, 1 - POWER, _threshold(count)) * error
    beyond_margin = MARGIN + float(ndtri(POWER)) * error
    # blocks show a change but for the part within one of them
    least = np.maximum(beyond_chance, beyond_margin) / (1 - 1 / count)
    return Unseen(*(least / (1 - least / 2)).tolist())  # half of a change is in the median step


def _change(series: Floats, count: int) -> Change | None:
    """The largest change in so many blocks of a series with the median 1, if there is one."""
    steps, parts, threshold = series.size, _shapes(count).parts, _threshold(count)
    blocks, sizes = _blocks(series, count)
    t, change, at = _fit(blocks)
    if t > threshold and abs(change) > MARGIN:
        first, end = (int(sizes[:block].sum()) for block in parts[at])
        if not first and steps // 2 < end < steps:  # the shorter part is the changed one
            return Change(False, -change, end, steps)
        return Change(end - first == steps, change, first, end)
    spread = float(blocks.std(ddof=1))
    head = BATCH
    while head < steps // count:
        change = float(np.median(series[:head])) - 1
        if abs(change) > max(threshold * spread * np.sqrt(steps / count / head), MARGIN):
            return Change(False, change, 0, head)
        head *= 2
    return None
