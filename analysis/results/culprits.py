"""The rank, node or link that costs a run most, with its size in seconds, or nobody.

Two kinds of evidence, each with its own test: a rank, all ranks of a node or half of the nodes slower than
the others in most of the run or for a while (`slow_ranks`), and a slow link (`links`) under transfer that is
long on every rank alike. Jitter that hits all ranks equally names nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.results.links import LOADED, SHARED_MACHINE, LinkRates, SlowLink, find_slow_link, node_name
from analysis.results.rank_steps import RankSteps, equal_blame
from analysis.results.slow_ranks import (
    Sensitivity,
    find_episodes,
    last_shares,
    median_of_others,
    sensitivity,
    slow_half,
    slow_ranks,
)
from analysis.stats.estimates import Estimate, Floats, mean_interval, ratio_of_means, share_mean

LEAST_COST = 0.01
"""Smallest cost that is named, as a fraction of the step."""
LONG_TRANSFER = 0.1
"""Fraction of the step from which unexplained transfer is pointed out."""


LINK_STATES = ("judged", "", "not measured", LOADED, SHARED_MACHINE)
"""Of the search for slow links, the state that says most of several repeats last; `not measured` under long
transfer, else empty."""


@dataclass(frozen=True)
class Culprit:
    """A part of the machine that makes all ranks slower. Seconds per step."""

    name: str
    """As `rank 3 on c04`, `node c04`, `c03, c04`, `the link of node c04`."""
    host: str
    """Node of the ranks in these steps; empty if unknown, of several nodes, and of a link."""
    ranks: tuple[int, ...]
    """Ranks that are slow; of a link none."""
    phase: str
    """Phase of the step that is longer."""
    excess_s: Estimate
    """Seconds above the median of the other ranks, over the steps from `first_step` to `last_step`; of a
    link, exposed transfer above that at the usual rate."""
    cost_s: float
    """Seconds by which a step would be shorter with this part as fast as the others, mean over all measured
    steps: a ceiling of the gain."""
    step_s: float
    """Mean seconds of a step."""
    persistent: bool
    first_step: int
    last_step: int
    last_share: float | None = None
    """Share of these steps in which one of the ranks arrives last; None for a link."""
    link: SlowLink | None = None
    other_nodes: str = ""
    """The faster half of the nodes, where half is slow."""

    @property
    def share(self) -> float:
        """Cost as a share of the step."""
        return self.cost_s / self.step_s

    @property
    def part(self) -> str:
        """Name common to repeats: the node, whose ranks have other numbers in each job, or else `name`."""
        return self.host or self.name


@dataclass(frozen=True)
class Diagnosis:
    """Stragglers of one run."""

    culprits: tuple[Culprit, ...]
    """Largest cost first; empty if nobody is slower than the others."""
    sensitivity: Sensitivity | None
    """Excess that the search for slow ranks finds; None where the ranks cannot be compared, because their own
    work is not known without waiting."""
    links: str
    """One of `LINK_STATES`."""


def diagnose(seconds: RankSteps, rates: LinkRates | None = None, unjudged: str = "") -> Diagnosis:
    """Find the culprits of one run.

    Args:
        seconds: of its ranks.
        rates: between its nodes, if measured.
        unjudged: reason to leave these rates out; empty without one.
    """
    step_s, culprits = float(seconds.seconds["step_s"].mean()), _slow_parts(seconds)
    state = unjudged or "judged" if rates else ""
    if seconds.floor_s is not None:
        transfer_s = seconds.seconds["comm_transfer_s"].mean(axis=0) + seconds.floor_s
        link = None if unjudged else find_slow_link(rates or {})
        if link:
            culprits.append(_slow_link(seconds, link, transfer_s))
        if not rates and transfer_s.mean() > LONG_TRANSFER * step_s:
            state = "not measured"
    costly = [
        each
        for each in culprits
        if each.share >= LEAST_COST
        and (each.link or _exceeds_zero(each.excess_s))  # its rates decide on a link
    ]
    return Diagnosis(
        tuple(sorted(costly, key=lambda culprit: -culprit.cost_s)),
        sensitivity(seconds.own_s, float(seconds.counts.mean())) if seconds.separates_waiting else None,
        state,
    )


@dataclass(frozen=True)
class Recurrence:
    """A culprit in the repeats that name it: by its part, or by its rank where that is slow in more
    repeats."""

    culprits: tuple[Culprit, ...]
    """One of each of these repeats, the costliest first."""
    repeats: int
    """All repeats."""
    nodes: int
    """Number of nodes on which a rank is slow that is slow in more repeats than its node; else 0."""

    @property
    def first(self) -> Culprit:
        return self.culprits[0]

    @property
    def steps(self) -> str:
        """First and last step of all."""
        first, last = (
            min(each.first_step for each in self.culprits),
            max(each.last_step for each in self.culprits),
        )
        return f"{first} to {last}"

    @property
    def last_share(self) -> float | None:
        """Mean share of the steps in which it is last; None for a link."""
        known = [each.last_share for each in self.culprits if each.last_share is not None]
        return sum(known) / len(known) if known else None

    @property
    def excess_s(self) -> Estimate:
        """Mean over these repeats."""
        return share_mean([each.excess_s.value for each in self.culprits])

    @property
    def share(self) -> Estimate:
        """Mean cost as a share of the mean step."""
        return ratio_of_means(
            [each.cost_s for each in self.culprits], [each.step_s for each in self.culprits]
        )


def recurring(repeats: Sequence[Diagnosis], least: float = 0.5) -> list[Recurrence]:
    """The culprits that at least this share of the repeats name, each once, the costliest first."""
    left = [list(repeat.culprits) for repeat in repeats]
    parts = []
    while every := [culprit for culprits in left for culprit in culprits]:
        first = max(every, key=lambda culprit: culprit.cost_s)
        of_part = [[each for each in culprits if each.part == first.part] for culprits in left]
        of_rank = [
            [each for each in culprits if each.ranks == first.ranks and len(each.ranks) == 1]
            for culprits in left
        ]
        moves = sum(map(bool, of_rank)) > sum(map(bool, of_part))
        # of several on its node, the one of its name, then the costliest
        named = [
            min(same, key=lambda each: (each.name != first.name, -each.cost_s))
            for same in (of_rank if moves else of_part)
            if same
        ]
        nodes = len({each.host for each in named} - {""}) if moves else 0
        named.sort(key=lambda each: -each.cost_s)
        if len(named) >= least * len(repeats):
            parts.append(Recurrence(tuple(named), len(repeats), nodes))
        left = [[each for each in culprits if each not in named] for culprits in left]
    return parts


def _slow_parts(seconds: RankSteps) -> list[Culprit]:
    """Slow ranks: half of the nodes, all ranks of a node that are slow at the same time, and single ones.

    A rank that is slow in many windows has its episode instead where its excess over all steps may be zero.
    """
    own_s, whole = seconds.own_s, slice(0, seconds.own_s.shape[1])
    episodes, throughout = find_episodes(own_s), slow_ranks(own_s)
    half = [] if throughout else slow_half(own_s, seconds.nodes)
    lasting = [
        rank
        for rank in throughout
        if rank not in episodes or _exceeds_zero(mean_interval(_above_others(own_s, [rank])))
    ]
    ranges = episodes | dict.fromkeys(lasting or half, whole)
    costs_s = _costs_s(own_s, ranges)
    culprits, left = [], set(ranges)
    for rank in ranges:
        if rank not in left:
            continue
        hosts = seconds.hosts_in(ranges[rank])
        ranks = [row for row, host in enumerate(hosts) if host and host == hosts[rank]]
        together = len(ranks) > 1 and left.issuperset(ranks) and _overlap([ranges[row] for row in ranks])
        if rank in half and len(half) > len(ranks):
            ranks = half
        elif not together:
            ranks = [rank]
        left -= set(ranks)
        columns = _union([ranges[row] for row in ranks])
        nodes, cost_s = sorted({hosts[row] for row in ranks}), sum(costs_s[row] for row in ranks)
        culprits.append(_culprit(seconds, ranks, nodes, columns, cost_s, columns == whole))
    return culprits


def _exceeds_zero(excess_s: Estimate) -> bool:
    """Whether its interval, if there is one, excludes zero."""
    return excess_s.low is None or excess_s.low > 0


def _costs_s(own_s: Floats, ranges: Mapping[int, slice]) -> dict[int, float]:
    """Seconds per step that all these ranks cost together, divided among them by their blame."""
    blame, usual, mended = equal_blame(own_s), median_of_others(own_s), own_s.copy()
    for rank, columns in ranges.items():
        mended[rank, columns] = np.minimum(own_s, usual)[rank, columns]
    charged = {rank: float(blame[rank, columns].sum()) for rank, columns in ranges.items()}
    saved = float((own_s.max(axis=0) - mended.max(axis=0)).mean())
    whole = sum(charged.values()) or 1.0
    return {rank: saved * charge / whole for rank, charge in charged.items()}


def _union(ranges: Sequence[slice]) -> slice:
    return slice(min(each.start for each in ranges), max(each.stop for each in ranges))


def _overlap(ranges: Sequence[slice]) -> bool:
    """Whether these ranges of columns share at least half of their union."""
    union, shared = _union(ranges), min(each.stop for each in ranges) - max(each.start for each in ranges)
    return bool(2 * shared >= union.stop - union.start)


def _culprit(
    seconds: RankSteps, ranks: list[int], nodes: list[str], columns: slice, cost_s: float, persistent: bool
) -> Culprit:
    """Ranks of these nodes that are slow in these columns."""
    own_s, host = seconds.own_s[:, columns], nodes[0] if len(nodes) == 1 else ""
    longer = {
        name: float(_above_others(phase_s[:, columns], ranks).mean())
        for name, phase_s in seconds.phases_s.items()
    }
    if len(ranks) == 1:
        name = f"rank {seconds.ranks[ranks[0]]}" + (f" on {host}" if host else "")
    else:
        name = node_name(host) if host else ", ".join(nodes)
    return Culprit(
        name,
        host,
        tuple(seconds.ranks[rank] for rank in ranks),
        max(longer, key=longer.__getitem__, default="step_s"),
        mean_interval(_above_others(own_s, ranks)),
        cost_s,
        float(seconds.seconds["step_s"].mean()),
        persistent,
        int(seconds.first[columns][0]),
        int(seconds.last[columns][-1]),
        float(last_shares(own_s)[ranks].sum()),
        other_nodes="" if len(nodes) == 1 else ", ".join(sorted(seconds.nodes.keys() - nodes)),
    )


def _above_others(seconds: Floats, ranks: list[int]) -> Floats:
    """Mean over these ranks minus the median of all others, by step."""
    return np.asarray(seconds[ranks].mean(axis=0) - np.median(np.delete(seconds, ranks, axis=0), axis=0))


def _slow_link(seconds: RankSteps, link: SlowLink, transfer_s: Floats) -> Culprit:
    """The slowest link: a collective is as slow as that one.

    At the usual rate R instead of r, transfer would take r / R of its time. Only exposed transfer after the
    arrival of the last rank is on record, as the minimum over ranks. Transfer under compute, and during the
    wait for a late rank, also takes longer on the slow link, so the excess is a lower bound of the link's own
    delay.
    """
    excess = mean_interval(transfer_s * (1 - link.bytes_per_s / link.usual_bytes_per_s))
    step_s, steps = float(seconds.seconds["step_s"].mean()), (int(seconds.first[0]), int(seconds.last[-1]))
    return Culprit(
        link.name, "", (), "comm_transfer_s", excess, excess.value, step_s, True, *steps, link=link
    )
