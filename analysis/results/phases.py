"""Phases of the mean step of one size, one value a repeat, and their intervals over repeats.

Transfer is recorded as a minimum over ranks, so that measurement noise shows as waiting
(`analysis.results.rank_steps`). This noise floor counts as transfer everywhere: recorded waiting is
waiting plus `Phases.floor_s`, and exposed communication, their sum, stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from analysis.stats.estimates import CONFIDENCE, Estimate, not_stationary

Floats = NDArray[np.float64]
WAIT, TRANSFER = "comm_wait_s", "comm_transfer_s"
PERSISTENT, TRANSIENT = "persistent_wait_s", "transient_wait_s"
"""Parts of `WAIT` after `Phases.with_divided_waiting`."""


@dataclass(frozen=True)
class Phases:
    """The mean step of each repeat in seconds, and its division into the measured phases."""

    step_s: tuple[float, ...]
    """One value a repeat, as all others."""
    seconds: dict[str, tuple[float, ...]]
    """By measured phase; they sum to `step_s`."""
    floor_s: tuple[float, ...] | None = None
    """Recorded waiting that counts as transfer; null where it is unknown."""
    stationary: bool = True
    """Whether the steps of all repeats are stationary; otherwise no mean has an interval."""

    @property
    def known(self) -> bool:
        """Whether the runs recorded a phase; `other_s` alone is the whole step."""
        return any(any(seconds) for name, seconds in self.seconds.items() if name != "other_s")

    @property
    def longest(self) -> str | None:
        """The phase that takes most of a step; None without measured phases."""
        return max(self.seconds, key=lambda name: sum(self.seconds[name])) if self.known else None

    @property
    def mean_step_s(self) -> float:
        """Geometric mean over repeats: the step of the scaling table."""
        return float(np.exp(np.mean(np.log(self.step_s))))

    def array(self, *names: str) -> Floats:
        """Seconds in these phases together, shape (repeats,); zero where a phase was not measured."""
        zero = np.zeros(len(self.step_s))
        return sum((np.array(self.seconds[name]) for name in names if name in self.seconds), start=zero)

    def scaled(self, *names: str) -> Floats:
        """Like `array`, in seconds of `mean_step_s`: the means of all phases sum to it."""
        return self.array(*names) * self.mean_step_s / np.mean(self.step_s)

    def mean_s(self, *names: str) -> Estimate | None:
        """Seconds of `mean_step_s` in these phases together; None where none of them was measured."""
        return self.mean_of(self.array(*names)) if self._measures(*names) else None

    def mean_of(self, seconds: ArrayLike) -> Estimate:
        """Seconds of `mean_step_s` that have the share of `seconds`, of shape (repeats,), in the steps."""
        scaled = np.asarray(seconds) * self.mean_step_s / np.mean(self.step_s)
        return self.interval(float(scaled.mean()), scaled)

    def share(self, *names: str) -> Estimate | None:
        """Share of the step in these phases together; None where none of them was measured."""
        return self.share_of(self.array(*names)) if self._measures(*names) else None

    def share_of(self, seconds: ArrayLike) -> Estimate:
        """Sum of `seconds`, of shape (repeats,), / sum of `step_s`; the interval ends at 1."""
        values = np.asarray(seconds, dtype=np.float64)
        share = float(values.mean() / np.mean(self.step_s))
        estimate = self.interval(share, self.linearized(values, share))
        return estimate if estimate.high is None else replace(estimate, high=min(1.0, estimate.high))

    def linearized(self, seconds: Floats, share: float) -> Floats:
        """Deviations that vary as the ratio of `seconds` to the step does (delta method)."""
        return (seconds - share * np.array(self.step_s)) / np.mean(self.step_s)

    def interval(self, value: float, own: Floats, base: Floats | None = None, least: float = 0.0) -> Estimate:
        """`value`, at least `least`, with the t interval of mean(own) - mean(base) over repeats.

        Degrees of freedom are Welch's (1947). One repeat has no interval.
        """
        sides = [own] if base is None or not base.any() else [own, base]
        repeats = min(map(len, sides))
        estimate = Estimate(value, None, None, repeats)
        if repeats > 1:
            half = _half_width([(float(np.var(side, ddof=1)) / len(side), len(side) - 1) for side in sides])
            estimate = Estimate(value, max(least, value - half), value + half, repeats)
        return estimate if self.stationary else not_stationary(estimate)

    def composition(self, phases: tuple[str, ...]) -> dict[str, float | None]:
        """Seconds of `mean_step_s` in each of these phases; None where one was not measured."""
        means = {name: self.mean_s(name) for name in phases}
        return {name: None if mean is None else mean.value for name, mean in means.items()}

    def with_floor(self, floor_s: ArrayLike) -> Phases:
        """The phases with the noise floor of waiting, of shape (repeats,), as transfer."""
        if WAIT not in self.seconds:
            return self
        moved = np.minimum(self.array(WAIT), floor_s)
        return replace(self._with({WAIT: -moved, TRANSFER: moved}), floor_s=tuple(moved.tolist()))

    def with_divided_waiting(self, persistent: Floats) -> Phases:
        """The phases with waiting as two: for ranks that are always slow, and for ranks late in turn.

        Args:
            persistent: share of the waiting of each repeat that is persistent
                (`analysis.results.rank_steps`), shape (repeats,).
        """
        wait_s = self.array(WAIT)
        parts = self._with({PERSISTENT: persistent * wait_s, TRANSIENT: (1 - persistent) * wait_s})
        return replace(parts, seconds={name: each for name, each in parts.seconds.items() if name != WAIT})

    def _with(self, added_s: Mapping[str, Floats]) -> Phases:
        changed = {name: tuple((self.array(name) + each).tolist()) for name, each in added_s.items()}
        return replace(self, seconds=self.seconds | changed)

    def _measures(self, *names: str) -> bool:
        return any(name in self.seconds for name in names)


def partition(step_s: ArrayLike, recorded: Mapping[str, ArrayLike], *, stationary: bool = True) -> Phases:
    """The phases of steps, scaled so that they sum to the steps; those without a number were not measured.

    Args:
        step_s: mean step of each repeat in seconds, shape (repeats,).
        recorded: seconds by phase, each of shape (repeats,); NaN in a repeat that did not measure it.
    """
    steps = np.asarray(step_s, dtype=np.float64)
    values = {name: np.asarray(seconds, dtype=np.float64) for name, seconds in recorded.items()}
    measured = {name: np.nan_to_num(each) for name, each in values.items() if not np.isnan(each).all()}
    whole_s = np.sum([*measured.values()], axis=0) if measured else np.zeros(len(steps))
    scale = np.divide(steps, whole_s, out=np.zeros(len(steps)), where=whole_s > 0)
    seconds = {name: tuple((scale * each).tolist()) for name, each in measured.items()}
    return Phases(tuple(steps.tolist()), seconds, stationary=stationary)


def _half_width(moments: list[tuple[float, int]]) -> float:
    """Of the t interval of a sum of means with these variances and degrees of freedom."""
    total = sum(variance for variance, _ in moments)
    if total == 0:
        return 0.0
    shares = [(variance / total, freedom) for variance, freedom in moments]  # tiny squares would be 0
    freedom = 1 / sum(share**2 / freedom for share, freedom in shares)
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(total)
