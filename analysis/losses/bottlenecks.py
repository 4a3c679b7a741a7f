"""Bottlenecks at one size, ranked by the ceiling of the gain from removing each.

With s the share of the step T that a phase takes, throughput without that phase is X / (1 - s): the gain has
the ceiling s / (1 - s). It is no forecast, because the removed time can move to another phase. Compute and
optimizer are needed, so that only their part beyond the prediction of the base counts.

A bottleneck is significant if the lower bound of its share over repeats exceeds `MATERIAL`. One repeat has no
significant bottleneck; neither have steps that are not stationary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from analysis.losses.waterfall import Floats, PhaseTimes, waterfall
from analysis.stats.estimates import Estimate
from disttrain.records.steps import PHASES

MATERIAL = 0.01
"""Smallest share of a step that counts as a bottleneck."""
STRAGGLERS = "stragglers"
"""Part of the step that named stragglers cost: their longer phases and the waiting of the others."""
NEEDED = ("compute_s", "optimizer_s")
"""Phases that cannot be removed: only the part beyond the base's prediction counts."""


@dataclass(frozen=True)
class Bottleneck:
    """One phase that takes time which could be saved."""

    phase: str
    share: Estimate
    """Removable share of the step, at least 0."""
    significant: bool

    @property
    def judged(self) -> bool:
        """Whether the share has an interval over repeats."""
        return self.share.basis == "repeats" and self.share.low is not None

    @property
    def ceiling(self) -> Estimate:
        """Largest gain in throughput from its removal, as a share of the throughput."""
        low, high = self.share.low, self.share.high
        return Estimate(
            _gain(self.share.value),
            None if low is None else _gain(low),
            None if high is None else _gain(high),
            self.share.repeats,
            self.share.basis,
        )


def bottlenecks(
    point: PhaseTimes, base: PhaseTimes | None, straggler_s: Mapping[str, Floats] | None = None
) -> list[Bottleneck]:
    """Phases that take at least `MATERIAL` of the step, the highest ceiling first.

    Args:
        base: the size that predicts compute and optimizer; None, or the point itself, leaves these two out.
        straggler_s: seconds of a step that named stragglers cost, by the phase in which they are recorded,
            each of shape (repeats,). They are one part; the phases count with the rest of their seconds.
    """
    costs = straggler_s or {}
    phases = {name: point.phases[name] - costs.get(name, 0.0) for name in point.phases}
    point = replace(point, phases=phases)
    removable = {name: point.share_of_step([name]) for name in PHASES if name not in NEEDED}
    if base is not None and base is not point:
        parts = {part.name: part.share for part in waterfall(point, base).parts}
        removable |= {name: parts[name] for name in NEEDED}
    if costs:
        removable[STRAGGLERS] = point.mean_share(np.sum(list(costs.values()), axis=0))
    found = [_bottleneck(name, share) for name, share in removable.items() if share.value >= MATERIAL]
    return sorted(found, key=lambda each: -each.share.value)


def _bottleneck(phase: str, share: Estimate) -> Bottleneck:
    low, high = (None if bound is None else min(max(bound, 0.0), 0.999) for bound in (share.low, share.high))
    bounded = Estimate(min(share.value, 0.999), low, high, share.repeats, share.basis)
    return Bottleneck(phase, bounded, share.basis == "repeats" and low is not None and low > MATERIAL)


def _gain(share: float) -> float:
    return share / (1 - share)
