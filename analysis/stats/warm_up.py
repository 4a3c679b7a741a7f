"""Warm-up of a series of step durations by MSER-5, and a test whether the steps after it are stationary.

The mean of a run describes its machine only if the measured steps are stationary: a longer warm-up, a device
that grows hot or a neighbour that arrives make it an average of two states. Two tests look for a change:

- MSER-5 (White, Cobb and Spratt, 2000; White 1997 for MSER): average each five steps, then drop the first d
  averages for which the squared standard error of the rest is least. d is at most half of the series; a
  minimum at that limit finds no stationary part, unless the last quarter of these steps agrees with the rest.
  Noise may move the minimum beyond the end of the warm-up, so that most of the dropped steps are usual ones.
  The first half, quarter and so on of them are therefore compared with the rest as well.
- A straight line through the medians of twelve batches.

Both judge by medians: a single long step is an outlier that the mean has to contain, not a change. A change
counts if its interval lies beyond `MARGIN`, so that a long, quiet run is not refused for a change
nobody would notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats.estimates import Floats, t_quantile

StationarityVerdict = Literal["stationary", "warm-up too short", "not stationary", "too few steps"]

BATCH = 5
"""Steps in one batch of MSER-5."""

MIN_STEPS = 60
"""Fewer measured steps are too few to tell: twelve batches, six in each half."""

MARGIN = 0.02
"""Changes of the duration up to this share are tolerated."""

LEVEL = 0.99
"""Confidence of the interval of a change: few tests of each run, and a false alarm costs its figures."""

PARTS_LEVEL = 0.999
"""Confidence of all intervals of the parts of the dropped steps together. It is high because short parts of
correlated steps often differ by chance."""

BATCHES = 12
"""Batches whose medians give the spread of a change."""


@dataclass(frozen=True)
class Change:
    """A relative change of the duration with its interval of confidence `LEVEL`; 0.1 is 10 % longer."""

    value: float
    low: float
    high: float

    @property
    def material(self) -> bool:
        """Whether the whole interval lies beyond `MARGIN`."""
        return self.low > MARGIN or self.high < -MARGIN


@dataclass(frozen=True)
class Stationarity:
    """Verdict on the measured steps of one run."""

    verdict: StationarityVerdict
    warm_up: int = 0
    """Measured steps that MSER-5 counts as warm-up, beyond the recorded one."""
    shift: Change | None = None
    """Median of the first `compared` of the steps that MSER-5 drops against the rest."""
    trend: Change | None = None
    """End of the remaining steps against their start, by the straight line through batch medians."""
    compared: int = 0
    """Steps whose median `shift` compares: all that MSER-5 drops, or the first part of them."""

    @property
    def publishable(self) -> bool:
        """Whether the mean of the measured steps may be published with an interval."""
        return self.verdict in ("stationary", "too few steps")

    @property
    def reason(self) -> str:
        """The finding as part of a sentence; empty for a stationary run."""
        if self.verdict == "too few steps":
            return f"fewer than {MIN_STEPS} measured steps: too few to test whether they are stationary"
        if self.verdict == "warm-up too short" and self.shift is not None:
            rest = "the rest" if self.compared == self.warm_up else f"those after the first {self.warm_up}"
            return f"the first {self.compared} measured steps are {_longer(self.shift)} than {rest} (MSER-5)"
        if self.verdict == "not stationary" and self.trend is not None and self.trend.material:
            return f"the step time drifts by {100 * self.trend.value:+.0f} % from start to end"
        if self.verdict == "not stationary" and self.shift is not None:
            first = f"the first {self.compared} measured steps are"
            first = "the first half of the measured steps is" if self.compared == self.warm_up else first
            second = "the second" if self.compared == self.warm_up else "the second half"
            return f"{first} {_longer(self.shift)} than {second} (MSER-5 at its limit)"
        return ""


def mser5(values: ArrayLike) -> int:
    """Number of leading values to drop: d* = argmin over d <= n/2 of sum_{i>d} (x_i - mean_{>d})^2 / (n-d)^2,
    with x the means of five values. A multiple of five; 0 for fewer than ten values."""
    batches = _means_of(np.asarray(values), BATCH)
    if batches.size < 2:
        return 0
    centred = (batches - batches.mean())[::-1]
    counts = np.arange(1, batches.size + 1)
    squares = np.cumsum(centred**2) - np.cumsum(centred) ** 2 / counts
    squares[squares <= 1e-12 * squares[-1]] = 0.0  # rounding; ties go to the shortest warm-up
    statistic = (squares / counts**2)[::-1]  # by d
    return BATCH * int(np.argmin(statistic[: batches.size // 2 + 1]))


def stationarity(step_s: ArrayLike) -> Stationarity:
    """Whether the durations of the measured steps of a run, in order, are stationary.

    The recorded warm-up is the floor: MSER-5 looks for more of it in what was measured.
    """
    series = np.asarray(step_s, dtype=np.float64)
    if series.size < MIN_STEPS:
        return Stationarity("too few steps")
    drop = mser5(series)
    rest = series[drop:]
    shift, compared = _head_shift(series[:drop], rest)
    short = shift is not None and shift.material
    at_limit = drop >= BATCH * (series.size // (2 * BATCH))
    if short and at_limit and _shift(series[drop - drop // 4 : drop], rest).material:
        return Stationarity("not stationary", drop, shift, compared=compared)
    trend = _trend(rest if short else series)
    if trend.material:
        return Stationarity("not stationary", drop, shift, trend, compared)
    verdict: StationarityVerdict = "warm-up too short" if short else "stationary"
    return Stationarity(verdict, drop if short else 0, shift, trend, compared)


def common_warm_up(repeats: Sequence[Floats]) -> int:
    """Measured steps that all repeats of a configuration have to leave out: the longest warm-up beyond the
    recorded one that MSER-5 finds in a repeat; 0 where no recorded warm-up is too short."""
    verdicts = [stationarity(step_s) for step_s in repeats]
    return max((each.warm_up for each in verdicts if each.verdict == "warm-up too short"), default=0)


def why_not_left_out(step_s: Floats, dropped: int) -> str:
    """The reason why the mean of a repeat without these steps cannot be published; empty if it can."""
    rest, least = step_s[dropped:], MIN_STEPS // 2
    if rest.size < least:
        return f"fewer than {least} measured steps would be left"
    return "" if stationarity(rest).publishable else "the steps after the warm-up are not stationary"


def _longer(change: Change) -> str:
    return f"{100 * abs(change.value):.0f} % {'longer' if change.value > 0 else 'shorter'}"


def _head_shift(head: Floats, rest: Floats) -> tuple[Change | None, int]:
    """Shift of the longest first part of `head` that differs from `rest`, and the steps of this part.

    The parts are all of `head`, and its first half, quarter and so on. Where none differs, that of all.
    """
    if not head.size:
        return None, 0
    whole = _shift(head, rest)
    halves = [head.size >> times for times in range(1, head.size.bit_length())]
    parts = [size for size in halves if size >= 2 * BATCH]
    level = 1 - (1 - PARTS_LEVEL) / max(1, len(parts))
    shifts = ((_shift(head[:size], rest, level), size) for size in parts)
    found = next((each for each in shifts if each[0].material), None)
    return (whole, head.size) if whole.material or found is None else found


def _shift(head: Floats, rest: Floats, level: float = LEVEL) -> Change:
    """Median of `head` against that of `rest`: Student's t with the spread of batch medians of `rest`.

    The spread of `head` is not used: a transient has few batches, and changes within them.
    """
    medians = _medians(rest)
    error = np.sqrt(medians.var(ddof=1) * rest.size / BATCHES * (1 / head.size + 1 / rest.size))
    half = float(t_quantile(BATCHES - 1, level) * error)
    usual = float(np.median(rest))
    change = float(np.median(head)) - usual
    return Change(change / usual, (change - half) / usual, (change + half) / usual)


def _trend(series: Floats) -> Change:
    """Rise of the least-squares line through batch medians, from the first step to the last."""
    medians = _medians(series)
    at = np.arange(BATCHES) - (BATCHES - 1) / 2
    slope = float(at @ medians / (at @ at))
    rest = medians - medians.mean() - slope * at
    error = np.sqrt(rest @ rest / (BATCHES - 2) / (at @ at))
    half = float(t_quantile(BATCHES - 2, LEVEL) * error)
    scale = BATCHES / float(np.median(series))
    return Change(slope * scale, (slope - half) * scale, (slope + half) * scale)


def _medians(values: Floats) -> Floats:
    return np.array([np.median(part) for part in np.array_split(values, BATCHES)])


def _means_of(values: Floats, size: int) -> Floats:
    """Means of consecutive `size` values; an incomplete batch at the end is dropped."""
    count = values.size // size
    means: Floats = values[: count * size].reshape(count, size).mean(axis=1)
    return means
