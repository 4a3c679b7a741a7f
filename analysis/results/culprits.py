"""The rank, node or link that costs a run most, with its size in seconds, or nobody.

Two kinds of evidence, each with its own test: a rank, all ranks of a node or half of the nodes slower than
the others in most of the run or for a while (`slow_ranks`), and a slow link (`links`) under transfer that is
long on every rank alike. Jitter that hits all ranks equally names nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.results.links import LinkRate, SlowLink, find_slow_links, node_name
from analysis.results.rank_steps import RankSteps
from analysis.results.slow_ranks import (
    Sensitivity,
    find_episodes,
    last_shares,
    median_of_others,
    sensitivity,
    slow_half,
    slow_ranks,
)
from analysis.results.waiting import equal_blame
from analysis.stats.batch_means import mean_interval
from analysis.stats.estimates import Estimate, Floats, ratio_of_means, share_mean

LEAST_COST = 0.01
"""Smallest cost that is named, as a fraction of the step."""
LONG_TRANSFER = 0.1
"""Fraction of the step from which unexplained transfer is pointed out."""

Kind = Literal["rank", "node", "nodes", "link"]
Columns = tuple[int, int]
"""First and last column of matrices (ranks, steps)."""


@dataclass(frozen=True)
class Culprit:
    """A part of the machine that makes all ranks slower. Seconds per step."""

    kind: Kind
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
    steps: int
    """Number of recorded steps in this range."""
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
    """State of the search for slow links: `judged`, `not measured` under long transfer, the reason for which
    measured rates were left out, or empty."""


def diagnose(
    seconds: RankSteps, floor_s: float | None, links: Sequence[LinkRate] = (), unjudged: str = ""
) -> Diagnosis:
    """Find the culprits of one run.

    Args:
        seconds: of its ranks.
        floor_s: noise floor of waiting (`waiting.noise_floor_s`); None where communication was not measured.
        links: rates between its nodes, if measured.
        unjudged: reason to leave these rates out; empty without one.
    """
    step_s = float(seconds.step_s.mean())
    transfer_s = None if floor_s is None else seconds.transfer_s.mean(axis=0) + floor_s
    culprits = _slow_ranks(seconds, step_s)
    if links and not unjudged and transfer_s is not None:
        culprits += _slow_links(seconds, links, transfer_s, step_s)
    state = unjudged or "judged" if links else ""
    if not links and transfer_s is not None and transfer_s.mean() > LONG_TRANSFER * step_s:
        state = "not measured"
    return Diagnosis(
        tuple(sorted(culprits, key=lambda culprit: -culprit.cost_s)),
        sensitivity(seconds.own_s, float(seconds.counts.mean())) if seconds.separates_waiting else None,
        state,
    )


def recurrence(culprit: Culprit, repeats: Sequence[Diagnosis]) -> tuple[int, int]:
    """Numbers of repeats in which its part is slow, and in which its rank is, on any node."""
    by_part = (any(other.part == culprit.part for other in repeat.culprits) for repeat in repeats)
    by_rank = (any(_same_rank(other, culprit) for other in repeat.culprits) for repeat in repeats)
    return sum(by_part), sum(by_rank)


def in_each_repeat(culprit: Culprit, repeats: Sequence[Diagnosis]) -> list[Culprit]:
    """The culprit in the repeats that name it, one a repeat: by its part, or by its rank where that is slow
    in more repeats. Of several on its node, the one of its name comes first, then the costliest."""
    by_part, by_rank = recurrence(culprit, repeats)
    same = [
        [each for each in repeat.culprits
         if (_same_rank(each, culprit) if by_rank > by_part else each.part == culprit.part)]
        for repeat in repeats
    ]  # fmt: skip
    return [min(each, key=lambda other: (other.name != culprit.name, -other.cost_s)) for each in same if each]


def mean_excess_s(culprits: Sequence[Culprit]) -> Estimate:
    """Mean excess of one culprit, one of each repeat, with the interval over repeats."""
    return share_mean([each.excess_s.value for each in culprits])


def mean_share(culprits: Sequence[Culprit]) -> Estimate:
    """Mean cost of one culprit, one of each repeat, as a share of the mean step."""
    return ratio_of_means([each.cost_s for each in culprits], [each.step_s for each in culprits])


def nodes_of_moving_rank(culprit: Culprit, repeats: Sequence[Diagnosis]) -> list[str]:
    """Nodes on which a rank is slow that is slow in more repeats than its node; empty otherwise."""
    by_part, by_rank = recurrence(culprit, repeats)
    every = (other for repeat in repeats for other in repeat.culprits)
    nodes = sorted({other.host for other in every if _same_rank(other, culprit) and other.host})
    return nodes if by_rank > by_part and len(nodes) > 1 else []


def _same_rank(one: Culprit, other: Culprit) -> bool:
    return one.kind == other.kind == "rank" and one.ranks == other.ranks


def repeated_culprits(repeats: Sequence[Diagnosis]) -> list[Culprit]:
    """Culprits of all repeats whose part or rank is slow in at least half of the repeats, highest cost
    first."""
    every = [culprit for repeat in repeats for culprit in repeat.culprits]
    often = [culprit for culprit in every if 2 * max(recurrence(culprit, repeats)) >= len(repeats)]
    return sorted(often, key=lambda culprit: -culprit.cost_s)


def _slow_ranks(seconds: RankSteps, step_s: float) -> list[Culprit]:
    persistent = slow_ranks(seconds.own_s)
    half = [] if persistent else slow_half(seconds.own_s, seconds.nodes)
    persistent = persistent or half
    slow = dict.fromkeys(persistent, (0, seconds.own_s.shape[1] - 1))
    for episode in find_episodes(seconds.own_s):
        slow.setdefault(episode.rank, (episode.first, episode.last))
    costs_s = _costs_s(seconds, slow)
    groups = _by_node(seconds, slow, persistent)
    if len({seconds.hosts[rank] for rank in half}) > 1:
        groups = [("nodes", half), *(group for group in groups if group[1][0] not in half)]
    culprits = [
        _culprit(
            seconds, kind, ranks, _union(slow, ranks), sum(costs_s[rank] for rank in ranks), step_s,
            persistent=ranks[0] in persistent,
        )
        for kind, ranks in groups
    ]  # fmt: skip
    return [culprit for culprit in culprits if culprit.share >= LEAST_COST]


def _costs_s(seconds: RankSteps, slow: dict[int, Columns]) -> dict[int, float]:
    """Seconds per step that all these ranks cost together, divided among them by their blame."""
    if not slow:
        return {}
    blame, usual = equal_blame(seconds.own_s), median_of_others(seconds.own_s)
    mended, charged = seconds.own_s.copy(), {}
    for rank, (first, last) in slow.items():
        part = slice(first, last + 1)
        mended[rank, part] = np.minimum(mended[rank, part], usual[rank, part])
        charged[rank] = float(blame[rank, part].sum())
    saved = float((seconds.own_s.max(axis=0) - mended.max(axis=0)).mean())
    whole = sum(charged.values()) or 1.0
    return {rank: saved * charge / whole for rank, charge in charged.items()}


def _by_node(
    seconds: RankSteps, slow: dict[int, Columns], persistent: Collection[int]
) -> list[tuple[Kind, list[int]]]:
    """Slow ranks grouped: all of a node with several ranks at the same time, and single ones."""
    groups: list[tuple[Kind, list[int]]] = []
    left = dict(slow)
    for ranks in (ranks for part in set(slow.values()) for ranks in seconds.nodes_between(*part).values()):
        if len(ranks) < 2 or not left.keys() >= set(ranks):
            continue
        on_one_node = seconds.hosts_between(*_union(slow, ranks))[ranks[0]]
        if on_one_node and (set(persistent).issuperset(ranks) or _overlap([slow[rank] for rank in ranks])):
            groups.append(("node", ranks))
            left = {rank: part for rank, part in left.items() if rank not in ranks}
    return groups + [("rank", [rank]) for rank in left]


def _union(slow: dict[int, Columns], ranks: Sequence[int]) -> Columns:
    return min(slow[rank][0] for rank in ranks), max(slow[rank][1] for rank in ranks)


def _overlap(parts: Sequence[Columns]) -> bool:
    """Whether these ranges of columns share at least half of their union."""
    firsts, lasts = zip(*parts, strict=True)
    return 2 * (min(lasts) - max(firsts) + 1) >= max(lasts) - min(firsts) + 1


def _culprit(
    seconds: RankSteps,
    kind: Kind,
    ranks: list[int],
    columns: Columns,
    cost_s: float,
    step_s: float,
    *,
    persistent: bool,
) -> Culprit:
    first, last = columns
    part = slice(first, last + 1)
    own_s = seconds.own_s[:, part]
    longer = {
        name: float(_above_others(phase_s[:, part], ranks).mean())
        for name, phase_s in seconds.phases_s.items()
    }
    host = seconds.hosts_between(first, last)[ranks[0]]
    name, others = f"rank {seconds.rank_ids[ranks[0]]}" + (f" on {host}" if host else ""), ""
    if kind == "node":
        name = node_name(host)
    elif kind == "nodes":
        slow = {seconds.hosts[rank] for rank in ranks}
        name, others = (", ".join(sorted(nodes)) for nodes in (slow, seconds.nodes.keys() - slow))
        host = ""
    return Culprit(
        kind,
        name,
        host,
        tuple(seconds.rank_ids[rank] for rank in ranks),
        max(longer, key=longer.__getitem__) if longer else "step_s",
        mean_interval(_above_others(own_s, ranks)),
        cost_s,
        step_s,
        persistent,
        int(seconds.steps[first]),
        int(seconds.steps[last] + seconds.counts[last] - 1),
        int(seconds.counts[part].sum()),
        float(last_shares(own_s)[ranks].sum()),
        other_nodes=others,
    )


def _above_others(seconds: Floats, ranks: list[int]) -> Floats:
    """Mean over these ranks minus the median of all others, by step."""
    return np.asarray(seconds[ranks].mean(axis=0) - np.median(np.delete(seconds, ranks, axis=0), axis=0))


def _slow_links(
    seconds: RankSteps, links: Sequence[LinkRate], transfer_s: Floats, step_s: float
) -> list[Culprit]:
    """The slowest link. A collective is as slow as its slowest link: that one is charged.

    At the usual rate R instead of r, transfer would take r / R of its time. Only exposed transfer after the
    arrival of the last rank is on record, as the minimum over ranks. Transfer under compute, and during the
    wait for a late rank, also takes longer on the slow link, so the excess is a lower bound of the link's own
    delay.
    """
    steps = (
        int(seconds.steps[0]),
        int(seconds.steps[-1] + seconds.counts[-1] - 1),
        int(seconds.counts.sum()),
    )
    return [
        Culprit(
            "link",
            link.name,
            "",
            (),
            "comm_transfer_s",
            excess,
            excess.value,
            step_s,
            True,
            *steps,
            link=link,
        )
        for link in find_slow_links(links)[:1]
        if (excess := mean_interval(transfer_s * (1 - link.bytes_per_s / link.usual_bytes_per_s))).value
        >= LEAST_COST * step_s
    ]
