"""Phases of the mean step of one size, one value a repeat, and their intervals over repeats.

Transfer is recorded as a minimum over ranks, so that measurement noise shows as waiting
(`analysis.results.rank_steps`). This noise floor counts as transfer everywhere: recorded waiting is
waiting plus `Phases.floor_s`, and exposed communication, their sum, stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats.estimates import Basis, Estimate, Floats, difference, moments, on_basis, within

WAIT, TRANSFER = "comm_wait_s", "comm_transfer_s"


class Part(NamedTuple):
    """One part of the mean step, or of its difference to a prediction."""

    name: str
    seconds: Estimate
    """Beyond the prediction; negative for a gain."""
    share: Estimate
    """`seconds` / mean step; the interval ends at 1."""
    ideal_s: float = 0.0
    """Predicted seconds: those of the base times the ratio of the work."""


@dataclass(frozen=True, eq=False)
class Phases:
    """The mean step of each repeat in seconds, and its division into the measured phases."""

    step_s: Floats
    """One value a repeat, as in all other arrays."""
    seconds: Mapping[str, Floats]
    """By measured phase; they sum to `step_s`."""
    floor_s: Floats | None = None
    """Recorded waiting that counts as transfer; null where it is unknown."""
    basis: Basis = "repeats"
    """Basis of all intervals; others than `repeats` leave none."""

    @property
    def known(self) -> bool:
        """Whether the runs recorded a phase; `other_s` alone is the whole step."""
        return any(seconds.any() for name, seconds in self.seconds.items() if name != "other_s")

    @property
    def mean_step_s(self) -> float:
        """Geometric mean over repeats: the step of the scaling table."""
        return float(np.exp(np.mean(np.log(self.step_s))))

    def array(self, *names: str) -> Floats:
        """Seconds in these phases together; zero where a phase was not measured."""
        return sum((self.seconds[name] for name in names if name in self.seconds), start=0 * self.step_s)

    def scaled(self, seconds: Floats) -> Floats:
        """Seconds of repeats, in seconds of `mean_step_s`: the means of all phases sum to it."""
        return seconds * self.mean_step_s / np.mean(self.step_s)

    def time(self, seconds: Floats, ideal_s: ArrayLike = 0.0, name: str = "") -> Part:
        """Mean of `seconds`, one value a repeat, beyond a prediction.

        Args:
            ideal_s: predicted seconds by each repeat of the base.
        """
        ideal, step_s = np.atleast_1d(ideal_s), self.mean_step_s
        scaled, least_s = self.scaled(seconds), 0.0 - float(np.mean(ideal))
        beyond_s = float(scaled.mean()) + least_s
        share = beyond_s / step_s
        # varies as the ratio of `seconds` to the step does (delta method)
        linear = (seconds - share * self.step_s) / np.mean(self.step_s)
        return Part(
            name,
            self._estimate(beyond_s, scaled, ideal, least_s, np.inf),
            self._estimate(share, linear, ideal / step_s, least_s / step_s, 1.0),
            -least_s,
        )

    def mean_s(self, *names: str) -> Estimate | None:
        """Seconds of `mean_step_s` in these phases together; None where none of them was measured."""
        part = self._part(*names)
        return part and part.seconds

    def share(self, *names: str) -> Estimate | None:
        """Share of the step in these phases together; None where none of them was measured."""
        part = self._part(*names)
        return part and part.share

    def _part(self, *names: str) -> Part | None:
        return self.time(self.array(*names)) if self.seconds.keys() & set(names) else None

    def _estimate(self, value: float, own: Floats, base: Floats, least: float, most: float) -> Estimate:
        """`value` with the t interval of mean(own) - mean(base) over repeats, within these limits."""
        mean, repeats = moments(own), len(own)
        if base.any():
            mean, repeats = difference(mean, moments(base)), min(repeats, len(base))
        return on_basis(within(value, mean, repeats, least, most), self.basis)


def losses(point: Phases, base: Phases, work: float) -> tuple[Part, ...]:
    """Parts of the steps of `point` beyond the prediction of `base`; they sum to the difference.

    Args:
        work: samples per device and step at the point / those at the base.
    """
    point = replace(point, basis=base.basis if point.basis == "repeats" else point.basis)
    names = {**point.seconds, **base.seconds}
    return tuple(point.time(point.array(name), work * base.scaled(base.array(name)), name) for name in names)


def partition(
    step_s: ArrayLike,
    recorded: Mapping[str, ArrayLike],
    floor_s: Sequence[float | None] = (),
    *,
    basis: Basis = "repeats",
) -> Phases:
    """The phases of steps, scaled so that they sum to the steps; those without a number were not measured.

    Args:
        step_s: mean step of each repeat in seconds.
        recorded: seconds by phase, one value a repeat; NaN in a repeat that did not measure it.
        floor_s: noise floor of waiting, one value a repeat; zero in repeats where it is unknown.
    """
    steps = np.asarray(step_s, dtype=np.float64)
    values = {name: np.asarray(seconds, dtype=np.float64) for name, seconds in recorded.items()}
    seconds = {name: np.nan_to_num(each) for name, each in values.items() if not np.isnan(each).all()}
    whole_s = sum(seconds.values(), start=0 * steps)
    scale = np.divide(steps, whole_s, out=0 * steps, where=whole_s > 0)
    phases = Phases(steps, {name: scale * each for name, each in seconds.items()}, basis=basis)
    if WAIT not in seconds or all(floor is None for floor in floor_s):
        return phases
    moved = np.minimum(phases.array(WAIT), [floor or 0.0 for floor in floor_s])
    changed = {WAIT: phases.array(WAIT) - moved, TRANSFER: phases.array(TRANSFER) + moved}
    return replace(phases, seconds={**phases.seconds, **changed}, floor_s=moved)
