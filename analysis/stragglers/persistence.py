"""Loss to stragglers, split into a persistent and a transient part.

With own seconds U of rank r in step s, a synchronous step loses max_r U - mean_r U (mean over ranks):

    persistent P = max_r mean_s U - mean U              (one rank is always slow)
    transient  Q = mean_s max_r U - max_r mean_s U      (another rank each step)
    P + Q = mean_s (max_r U - mean_r U), both >= 0

From finitely many steps P is too large: of equal ranks, one has the largest mean by chance. Half-sampling
removes this bias: one half of the steps chooses the rank, the other half gives the rank's excess.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from analysis.stats.estimates import Floats

BLOCKS = 10
"""Blocks of consecutive steps; a half has every second block of a random order. Consecutive steps are
correlated, so single steps of one block would carry the chance of one half into the other."""
SPLITS = 32
"""Random halvings that are averaged."""


class StragglerLoss(NamedTuple):
    """Seconds per step, as a mean over ranks."""

    persistent_s: float
    transient_s: float

    @property
    def total_s(self) -> float:
        return self.persistent_s + self.transient_s

    def scaled(self, factor: float) -> StragglerLoss:
        """The loss with both parts times `factor`."""
        return StragglerLoss(factor * self.persistent_s, factor * self.transient_s)


def split_loss(own_s: Floats) -> StragglerLoss:
    """Persistent and transient loss of own seconds (ranks, steps), without bias correction."""
    of_ranks = own_s.mean(axis=1)
    persistent = of_ranks.max() - own_s.mean()
    return StragglerLoss(float(persistent), float(own_s.max(axis=0).mean() - of_ranks.max()))


def unbiased_loss(own_s: Floats, seed: int = 0) -> StragglerLoss:
    """As `split_loss`, with the bias of the persistent part removed by half-sampling; the sum is the same.

    The persistent part is limited to the range from 0 to the sum. With fewer than two steps nothing can be
    halved, and the result is that of `split_loss`.
    """
    plain = split_loss(own_s)
    steps = own_s.shape[1]
    if steps < 2:
        return plain
    blocks = np.array_split(np.arange(steps), min(BLOCKS, steps))
    sums = np.stack([own_s[:, block].sum(axis=1) for block in blocks])
    sizes = np.array([len(block) for block in blocks])
    random = np.random.default_rng(seed)
    found = []
    for _ in range(SPLITS):
        order = random.permutation(len(blocks))
        halves = [sums[part].sum(axis=0) / sizes[part].sum() for part in np.array_split(order, 2)]
        for chosen_by, seconds in (halves, halves[::-1]):
            found.append(seconds[np.argmax(chosen_by)] - seconds.mean())
    persistent = min(max(float(np.mean(found)), 0.0), plain.total_s)
    return StragglerLoss(persistent, plain.total_s - persistent)
