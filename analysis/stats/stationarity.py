"""Stationarity of the measured steps of a run: blocks of steps against each other, and a proposed warm-up.

The mean of a run describes its machine only if the measured steps are stationary: a longer warm-up, a device
that grows hot or a neighbour that arrives make it an average of two states. The steps are cut into blocks
that are nearly independent, and the medians of the blocks, which a single long step does not change, are
compared by Student's t with the spread that the compared change leaves:

- each run of consecutive blocks against all others: a jump, two regimes, a bulge;
- a straight line: a drift;
- the first steps, fewer than a block, against all others: a short warm-up.

The largest t decides, with `LEVEL` divided by the number of comparisons (Bonferroni). A change below `MARGIN`
is tolerated. Where the first steps differ, MSER-5 (White, Cobb and Spratt, 2000) proposes a warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import nctdtrinc, ndtri

from analysis.stats.batch_means import lag_1
from analysis.stats.estimates import Floats, t_quantile

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

PLAIN = 5.5
"""t of a change of twelve blocks that is removed, up to three times, before the correlation is estimated."""

POWER = 0.9
"""Nominal share of the smallest changes that are detected: by simulation at least 80 % with the correlation
of steps estimated."""


class Change(NamedTuple):
    """A change of the duration of a part of the steps against all others, or from start to end."""

    is_drift: bool
    value: float
    """Share of the median step: 0.1 is 10 % longer."""
    first: int
    """Measured steps before the changed part."""
    end: int
    """Measured steps up to the end of the changed part."""


@dataclass(frozen=True)
class Stationarity:
    """Verdict on the measured steps of one run."""

    verdict: StationarityVerdict
    change: Change | None = None
    """Of a run that is not stationary or has too short a warm-up."""
    warm_up: int = 0
    """Measured steps that a longer warm-up would have to leave out, beyond the recorded one."""
    jump: float | None = None
    """Smallest jump amid such steps that is detected in 80 %, as a share of the step; None for too few."""
    drift: float | None = None
    """The same of a drift from the first step to the last."""

    @property
    def publishable(self) -> bool:
        """Whether the mean of the measured steps may be published with an interval."""
        return self.verdict in ("stationary", "too few steps")

    @property
    def reason(self) -> str:
        """The change as part of a sentence; empty without one."""
        if self.change is None:
            return ""
        share = f"{100 * abs(self.change.value):.0f} %"
        if self.change.is_drift:
            return (
                f"the step time {'rises' if self.change.value > 0 else 'falls'} by {share} from start to end"
            )
        steps = f"measured steps {self.change.first + 1} to {self.change.end}"
        return f"{steps} are {share} {'longer' if self.change.value > 0 else 'shorter'} than the others"


def stationarity(step_s: ArrayLike) -> Stationarity:
    """Whether the durations of the measured steps of a run, in order, are stationary."""
    series = np.asarray(step_s, dtype=np.float64)
    length = block_length(series) if series.size >= MIN_STEPS else MIN_STEPS
    count = series.size // length
    if count < MIN_BLOCKS:
        return Stationarity("too few steps")
    change, spread = _change(series, count)
    error = 2 * spread / np.sqrt(count) / float(np.median(series))
    errors = float(nctdtrinc(count - 2, 1 - POWER, _threshold(count)))
    jump = float(max(errors * error, MARGIN + ndtri(POWER) * error))
    drift = float(np.sqrt(3)) * jump
    if change is None:
        return Stationarity("stationary", None, 0, jump, drift)
    drop = 0 if change.is_drift or change.first else mser5(series)
    if drop and stationarity(series[drop:]).publishable:
        return Stationarity("warm-up too short", change, drop, jump, drift)
    return Stationarity("not stationary", change, 0, jump, drift)


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
    found = lag_1(np.clip(left, -bound, bound))
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


class _Fit(NamedTuple):
    """The change of blocks with the largest t."""

    t: float
    change: float
    at: int
    """Index in `_shapes`."""
    spread: float
    """Standard deviation of the blocks without the change."""


@lru_cache(maxsize=32)
def _shapes(count: int) -> tuple[Floats, list[tuple[int, int]]]:
    """Changes by one of so many blocks, shape (changes, count), the drift last; first and end of a jump."""
    parts = [
        (first, end)
        for first in range(count)
        for end in range(first + 1, count)  # the last blocks are the complement of the first ones
    ]
    at = np.arange(count)
    jumps = [((at >= first) & (at < end)).astype(np.float64) for first, end in parts]
    return np.array([*jumps, at / (count - 1)]), parts


def _fit(blocks: Floats) -> _Fit:
    shapes, _ = _shapes(blocks.size)
    shapes = shapes - shapes.mean(axis=1, keepdims=True)
    squares = (shapes**2).sum(axis=1)
    changes = shapes @ blocks / squares
    total = float(((blocks - blocks.mean()) ** 2).sum())
    left = np.maximum(total - squares * changes**2, 1e-20 * total) / (blocks.size - 2)
    t = np.abs(changes) * np.sqrt(squares / left) if total else np.zeros(squares.size)
    best = int(np.argmax(t))
    return _Fit(float(t[best]), float(changes[best]), best, float(np.sqrt(left[best])))


def _threshold(count: int) -> float:
    """t above which the largest one of so many blocks is a change."""
    return float(t_quantile(count - 2, 1 - LEVEL / len(_shapes(count)[0])))


def _medians(series: Floats, count: int) -> Floats:
    """Of the blocks of `np.array_split`, of which the first may be longer by one."""
    size, longer = divmod(series.size, count)
    parts = np.split(series, [longer * (size + 1)])
    shapes = ((longer, size + 1), (count - longer, size))
    medians = [np.median(part.reshape(shape), axis=1) for part, shape in zip(parts, shapes, strict=True)]
    return np.concatenate(medians)


def _plain_changes(series: Floats) -> Floats:
    """The change of each step by changes that are plain in twelve blocks."""
    parts = np.array_split(series, 12)
    blocks, sizes = _medians(series, 12), [part.size for part in parts]
    changes = np.zeros(12)
    for _ in range(3):
        fit = _fit(blocks - changes)
        if fit.t >= PLAIN:
            changes += fit.change * _shapes(12)[0][fit.at]
    return np.repeat(changes, sizes)


def _change(series: Floats, count: int) -> tuple[Change | None, float]:
    """The largest change of the series in so many blocks, if there is one; and the spread of blocks."""
    edges = np.cumsum([0, *(block.size for block in np.array_split(series, count))])
    blocks = _medians(series, count)
    fit, usual, threshold = _fit(blocks), float(np.median(series)), _threshold(count)
    if fit.t > threshold and abs(fit.change) > MARGIN * usual:
        parts = _shapes(count)[1]
        if fit.at == len(parts):
            return Change(True, fit.change / usual, 0, series.size), fit.spread
        first, end = (int(edges[each]) for each in parts[fit.at])
        if first or end <= series.size // 2:
            return Change(False, fit.change / usual, first, end), fit.spread
        return Change(False, -fit.change / usual, end, series.size), fit.spread
    spread = float(blocks.std(ddof=1))
    head = BATCH
    while head < series.size // count:
        change = float(np.median(series[:head])) - usual
        error = spread * np.sqrt(series.size / count / head)
        if abs(change) > max(threshold * error, MARGIN * usual):
            return Change(False, change / usual, 0, head), spread
        head *= 2
    return None, spread
