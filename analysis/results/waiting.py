"""Waiting of synchronous ranks: its noise floor, its persistent and transient part, and its charges.

A step is synchronous: every rank works for its own seconds U, those of a step outside communication, then all
ranks wait for the last. Matrices have the shape (ranks, steps).

**Loss**, as a mean over ranks, P + Q = mean_s (max_r U - mean_r U), both at least 0:

    persistent P = max_r mean_s U - mean U              (one rank is always slow)
    transient  Q = mean_s max_r U - max_r mean_s U      (another rank each step)

From finitely many steps P is too large: of equal ranks, one has the largest mean by chance. Half-sampling
removes this bias: one half of the steps chooses the rank, the other half gives the excess of the rank.

**Noise floor.** Telemetry estimates transfer as the minimum over ranks of the seconds d_r in a collective,
and waiting as d_r minus that minimum. With noise e_r in d_r the minimum is too small by

    b = E[min_r w_r] - E[min_r (w_r + e_r)]        (w_r: true waiting; its minimum is 0)

so that every rank seems to wait b seconds longer. Where nobody waits, b grows with the number of ranks: 0.56,
1.42, 2.38 and 3.04 standard deviations of normal noise for 2, 8, 64 and 512 ranks. All ranks leave a blocking
collective together, so own seconds plus seconds in collectives are the same for all ranks of a step. Their
differences are the noise; resampled on top of true waiting, max U - U_r, they give b.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from analysis.results.rank_steps import RankSteps
from analysis.stats.estimates import Floats

BLOCKS = 10
"""Blocks of consecutive steps, as single steps are correlated. All 252 halves of the blocks are averaged."""
DRAWN_STEPS = 3000
"""Steps whose noise is drawn for the floor."""


class StragglerLoss(NamedTuple):
    """Seconds per step, as a mean over ranks."""

    persistent_s: float
    transient_s: float

    @property
    def total_s(self) -> float:
        return self.persistent_s + self.transient_s


def straggler_loss(own_s: Floats) -> StragglerLoss:
    """The loss of own seconds, without the bias of P where there are two steps or more.

    P is limited to the range from 0 to P + Q.
    """
    total = float((own_s.max(axis=0) - own_s.mean(axis=0)).mean())
    of_ranks = own_s.mean(axis=1)
    persistent = float(of_ranks.max() - of_ranks.mean())
    if own_s.shape[1] >= 2:
        parts = np.array_split(own_s, min(BLOCKS, own_s.shape[1]), axis=1)
        sums, sizes = np.stack([part.sum(axis=1) for part in parts]), [part.shape[1] for part in parts]
        half = _halves(len(parts))
        slowest = (half @ sums).argmax(axis=1)
        others = (1 - half) @ sums / ((1 - half) @ sizes)[:, None]
        excess = others[np.arange(len(half)), slowest] - others.mean(axis=1)
        persistent = min(max(float(excess.mean()), 0.0), total)
    return StragglerLoss(persistent, total - persistent)


@cache
def _halves(blocks: int) -> Floats:
    """All halves of so many blocks, as rows of ones and zeros."""
    chosen = list(combinations(range(blocks), blocks // 2))
    halves = np.zeros((len(chosen), blocks))
    np.put_along_axis(halves, np.array(chosen), 1.0, axis=1)
    return halves


def noise_floor_s(own_s: Floats, exposed_s: Floats, seed: int = 0) -> float:
    """Bias b in seconds per step, to subtract from the mean waiting of every rank and to add to transfer.

    Args:
        own_s: own seconds.
        exposed_s: exposed communication, waiting and transfer.
        seed: of the resampling.

    Noise of the boundary between own seconds and communication cancels in their sum and is not seen.
    """
    ranks, steps = own_s.shape
    if ranks < 2:
        return 0.0
    total = own_s + exposed_s
    # the mean over ranks takes a share 1/N of the variance with it
    noise = ((total - total.mean(axis=0)) * np.sqrt(ranks / (ranks - 1))).ravel()
    random = np.random.default_rng(seed)
    drawn_steps = own_s[:, random.choice(steps, DRAWN_STEPS)]
    drawn = random.choice(noise, drawn_steps.shape)
    return max(0.0, -float((drawn_steps.max(axis=0) - drawn_steps + drawn).min(axis=0).mean()))


def equal_blame(arrival_s: Floats) -> Floats:
    """Rank-seconds of waiting that each rank is charged with in each step; the charges sum to all waiting.

    Order the arrivals a(1) <= ... <= a(N) of a step. During the gap between a(i) and a(i+1), i ranks wait for
    N - i; each absent rank is charged i / (N - i) of the gap. A rank is charged only for the time before its
    own arrival.

    Args:
        arrival_s: seconds from any instant common to the ranks of a step.
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


class RunWaiting(NamedTuple):
    """Waiting of the ranks of one run. Seconds per step."""

    loss: StragglerLoss
    floor_s: float | None
    """None where communication was not measured."""


def run_waiting(seconds: RankSteps) -> RunWaiting:
    """The loss and the noise floor of one run."""
    exposed_s = seconds.wait_s + seconds.transfer_s
    floor_s = noise_floor_s(seconds.own_s, exposed_s) if np.isfinite(exposed_s).all() else None
    return RunWaiting(straggler_loss(seconds.own_s), floor_s)
