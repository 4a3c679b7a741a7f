"""Seconds of one run as matrices of rank x step: own work, loss to late ranks, and noise floor of waiting.

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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.read.steps import Steps, filled
from analysis.stats.estimates import Floats, block_sums

_SAME_HOST = 0.9
"""Share of the columns that a rank needs on one node to have its name; the rest is noise at the ends."""
OWN_PHASES = ("compute_s", "input_s", "optimizer_s", "checkpoint_s", "other_s")
"""Phases in which a rank waits for no other rank."""
_COMMUNICATION = ("comm_wait_s", "comm_transfer_s", "comm_exposed_s")
BLOCKS = 10
"""Blocks of consecutive steps, as single steps are correlated. All 252 halves of the blocks are averaged."""
DRAWN_STEPS = 3000
"""Steps whose noise is drawn for the floor."""


class StragglerLoss(NamedTuple):
    """Seconds per step, as a mean over ranks."""

    persistent_s: float
    total_s: float
    """Persistent and transient."""


@dataclass(frozen=True)
class RankSteps:
    """Measured steps of one run that every rank recorded, in seconds of a step: the record of several steps
    counts as their mean, `counts` times. Matrices have the shape (ranks, records)."""

    first: NDArray[np.int32]
    """First step of each record."""
    counts: NDArray[np.int32]
    ranks: tuple[int, ...]
    """Rank of each row, ascending."""
    hosts: NDArray[np.object_]
    """Node of each rank in each record, which differs between attempts; empty if unknown."""
    seconds: Mapping[str, Floats]
    """Of the phases, the measured ones; NaN where a record lacks one."""
    own_s: Floats
    """Seconds of a step outside communication."""

    @property
    def last(self) -> NDArray[np.int32]:
        """Last step of each record."""
        return self.first + self.counts - 1

    @property
    def phases_s(self) -> Mapping[str, Floats]:
        """Seconds by phase of `OWN_PHASES`."""
        return {name: self.seconds[name] for name in OWN_PHASES if name in self.seconds}

    @property
    def separates_waiting(self) -> bool:
        """Whether `own_s` leaves out the waiting for other ranks; without it, ranks cannot be compared."""
        return "compute_s" in self.seconds or not np.allclose(self.own_s, self.seconds["step_s"])

    def hosts_in(self, columns: slice = slice(None)) -> list[str]:
        """Node of each row in these columns; empty if unknown or if no node has nine tenths of them."""
        part = self.hosts[:, columns]
        middle = part[:, part.shape[1] // 2]  # changes are at the ends
        return np.where((part == middle[:, None]).mean(axis=1) >= _SAME_HOST, middle, "").tolist()

    @cached_property
    def nodes(self) -> dict[str, list[int]]:
        """Rows of each node that is the same throughout the run."""
        hosts = np.array(self.hosts_in())
        return {host: np.flatnonzero(hosts == host).tolist() for host in np.unique(hosts).tolist() if host}

    @cached_property
    def loss(self) -> StragglerLoss:
        return straggler_loss(self.own_s)

    @cached_property
    def floor_s(self) -> float | None:
        """Noise floor of waiting; None where communication was not measured."""
        exposed_s = self.seconds["comm_wait_s"] + self.seconds["comm_transfer_s"]
        return noise_floor_s(self.own_s, exposed_s) if np.isfinite(exposed_s).all() else None


def rank_steps(steps: Steps) -> RankSteps | None:
    """The matrices of one run; None without two ranks and one common step.

    Steps that a rank did not record, and steps without a measurement, are left out. Where no phase was
    measured, own seconds are the step's seconds minus exposed communication. In steps whose communication
    some rank did not measure, `other_s` contains waiting, so it is no own work there.
    """
    rows = steps.common
    if not rows.size or len(rows) < 2:
        return None
    counts = steps.counts[rows[0]]
    seconds = {name: steps.seconds[name][rows] / counts for name in ("step_s", *OWN_PHASES, *_COMMUNICATION)}
    known = np.any([np.isfinite(seconds[name]) for name in _COMMUNICATION], axis=0).all(axis=0)
    for name in OWN_PHASES:
        if not np.isfinite(seconds[name]).any():
            del seconds[name]
    if {"compute_s", "other_s"} <= seconds.keys():
        seconds["other_s"] = np.where(known, seconds["other_s"], 0.0)
        if not known.any():
            del seconds["other_s"]
    own = [seconds[name] for name in OWN_PHASES if name in seconds]
    own = own or [seconds["step_s"], -seconds["comm_wait_s"], -seconds["comm_transfer_s"]]
    own_s = filled(np.array(own)).sum(axis=0)
    ranks = tuple(steps.measured_ranks.tolist())
    return RankSteps(steps.step[rows[0]], counts, ranks, steps.host[rows], seconds, own_s)


def straggler_loss(own_s: Floats) -> StragglerLoss:
    """The loss of own seconds, without the bias of P where there are two steps or more.

    P is limited to the range from 0 to P + Q.
    """
    total = float((own_s.max(axis=0) - own_s.mean(axis=0)).mean())
    of_ranks = own_s.mean(axis=1)
    persistent = float(of_ranks.max() - of_ranks.mean())
    if own_s.shape[1] >= 2:
        sums, sizes = block_sums(own_s, min(BLOCKS, own_s.shape[1]))
        half = _halves(len(sizes))
        slowest = (half @ sums.T).argmax(axis=1)
        others = (1 - half) @ sums.T / ((1 - half) @ sizes)[:, None]
        excess = others[np.arange(len(half)), slowest] - others.mean(axis=1)
        persistent = min(max(float(excess.mean()), 0.0), total)
    return StragglerLoss(persistent, total)


@cache
def _halves(blocks: int) -> Floats:
    """All halves of so many blocks, as rows of ones and zeros."""
    chosen = list(combinations(range(blocks), blocks // 2))
    halves = np.zeros((len(chosen), blocks))
    np.put_along_axis(halves, np.array(chosen), 1.0, axis=1)
    return halves


def noise_floor_s(own_s: Floats, exposed_s: Floats) -> float:
    """Bias b in seconds per step, to subtract from the mean waiting of every rank and to add to transfer.

    Args:
        own_s: own seconds.
        exposed_s: exposed communication, waiting and transfer.

    Noise of the boundary between own seconds and communication cancels in their sum and is not seen.
    """
    ranks, steps = own_s.shape
    total = own_s + exposed_s
    # the mean over ranks takes a share 1/N of the variance with it
    noise = ((total - total.mean(axis=0)) * np.sqrt(ranks / (ranks - 1))).ravel()
    random = np.random.default_rng(0)
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
    order = np.argsort(arrival_s, axis=0)
    gaps = np.diff(np.take_along_axis(arrival_s, order, axis=0), axis=0)
    arrived = np.arange(1, len(order))[:, None]
    charges = np.cumsum(gaps * arrived / arrived[::-1], axis=0)
    blame = np.zeros_like(arrival_s)
    np.put_along_axis(blame, order[1:], charges, axis=0)
    return blame
