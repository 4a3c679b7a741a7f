"""Bottlenecks at one size, ranked by the ceiling of the gain from removing each.

With s the share of the step T that a phase takes, throughput without that phase is X / (1 - s): the gain has
the ceiling s / (1 - s). It is no forecast, because the removed time can move to another phase. Compute and
optimizer are needed, so that only their part beyond the prediction of the base counts.

A bottleneck is significant if the lower bound of its share exceeds `MATERIAL`. One repeat has no interval and
no significant bottleneck.
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis.losses.waterfall import PhaseTimes, mean_with_interval, waterfall
from analysis.stats.estimates import Estimate
from disttrain.records.steps import PHASES

MATERIAL = 0.01
"""Smallest share of a step that counts as a bottleneck."""
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
    def ceiling(self) -> Estimate:
        """Largest gain in throughput from its removal, as a share of the throughput."""
        low, high = self.share.low, self.share.high
        return Estimate(
            _gain(self.share.value),
            None if low is None else _gain(low),
            None if high is None else _gain(high),
            self.share.repeats,
        )


def bottlenecks(point: PhaseTimes, base: PhaseTimes | None) -> list[Bottleneck]:
    """Phases that take at least `MATERIAL` of the step, the highest ceiling first.

    Args:
        base: the size that predicts compute and optimizer; None, or the point itself, leaves these two out.
    """
    removable = {
        name: mean_with_interval(point.phases[name] / point.step_s) for name in PHASES if name not in NEEDED
    }
    if base is not None and base is not point:
        parts = {part.name: part.share for part in waterfall(point, base).parts}
        removable |= {name: parts[name] for name in NEEDED}
    found = [_bottleneck(name, share) for name, share in removable.items() if share.value >= MATERIAL]
    return sorted(found, key=lambda each: -each.share.value)


def _bottleneck(phase: str, share: Estimate) -> Bottleneck:
    low, high = (None if bound is None else min(max(bound, 0.0), 0.999) for bound in (share.low, share.high))
    bounded = Estimate(min(share.value, 0.999), low, high, share.repeats)
    return Bottleneck(phase, bounded, low is not None and low > MATERIAL)


def _gain(share: float) -> float:
    return share / (1 - share)
