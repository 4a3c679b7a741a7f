"""The rank, node or link that costs a run most, with its size in seconds, or nobody.

Three kinds of evidence, each with its own test: a rank, all ranks of a node or half of the nodes slower than
the others in most of the run (`outliers`, `slow_half`), or for a while (`episodes`), and a slow link
(`links`) under transfer that is long on every rank alike. Jitter that hits all ranks equally names nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.stats.estimates import Floats
from analysis.stragglers import persistence
from analysis.stragglers.blame import equal_blame
from analysis.stragglers.episodes import find_episodes
from analysis.stragglers.intervals import SecondsInterval, mean_interval, total
from analysis.stragglers.links import LinkRate, SlowLink, find_slow_links, node_name
from analysis.stragglers.noise_floor import NoiseFloor, corrected_wait, noise_floor
from analysis.stragglers.outliers import median_of_others, slow_ranks
from analysis.stragglers.rank_steps import RankSteps
from analysis.stragglers.slow_half import slow_half

LEAST_COST = 0.01
"""Smallest cost that is named, as a fraction of the step."""
LONG_TRANSFER = 0.1
"""Fraction of the step from which unexplained transfer is pointed out."""

Kind = Literal["rank", "node", "nodes", "link"]


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
    excess_s: SecondsInterval
    """Seconds above the median of the other ranks, over the steps from `first_step` to `last_step`; of a
    link, exposed transfer above that at the usual rate."""
    cost: SecondsInterval
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
    def cost_s(self) -> float:
        return self.cost.value

    @property
    def share(self) -> float:
        """Cost as a share of the step."""
        return self.cost.value / self.step_s

    @property
    def part(self) -> str:
        """Name common to repeats: the node, whose ranks have other numbers in each job, or else `name`."""
        return self.host or self.name


@dataclass(frozen=True)
class Diagnosis:
    """Stragglers of one run; seconds per step."""

    culprits: tuple[Culprit, ...]
    """Largest cost first; empty if nobody is slower than the others."""
    step_s: float
    loss: persistence.StragglerLoss
    """Own work of the last rank beyond the mean over ranks, persistent and transient."""
    floor: NoiseFloor | None
    """Waiting that noise alone produces; None where communication was not measured."""
    wait_s: float | None
    """Waiting above the floor, mean over ranks; None where communication was not measured."""
    unexplained_transfer: bool
    """Transfer takes a tenth of the step or more, and no rates of links were measured."""
    separates_waiting: bool
    """Whether the ranks' own work is known without waiting (`RankSteps.separates_waiting`)."""
    link_rates: bool
    """Whether rates of links were measured."""
    unjudged_links: str = ""
    """The reason for which measured rates of links were left out."""

    @property
    def waiting(self) -> persistence.StragglerLoss:
        """Waiting above the floor, mean over ranks, divided in proportion to `loss`; `loss` itself where
        communication was not measured."""
        if self.wait_s is None or self.loss.total_s <= 0:
            return self.loss
        return self.loss.scaled(self.wait_s / self.loss.total_s)


def diagnose(found: RankSteps, links: Sequence[LinkRate] = ()) -> Diagnosis:
    """Find the culprits of one run. `links`: rates between its nodes, if measured."""
    blame = equal_blame(found.own_s)
    step_s = float(found.step_s.mean())
    floor = floor_of(found)
    transfer_s = float(found.transfer_s.mean()) + floor.floor_s if floor else None
    culprits = [*_slow_ranks(found, blame, step_s), *_slow_links(found, links, floor, step_s)]
    return Diagnosis(
        tuple(sorted(culprits, key=lambda each: -each.cost_s)),
        step_s,
        persistence.unbiased_loss(found.own_s),
        floor,
        max(0.0, float(corrected_wait(found.wait_s, floor).mean())) if floor else None,
        not links and transfer_s is not None and transfer_s > LONG_TRANSFER * step_s,
        found.separates_waiting,
        bool(links),
    )


def floor_of(found: RankSteps) -> NoiseFloor | None:
    """Waiting that noise alone produces; None where communication was not measured."""
    if not (np.isfinite(found.wait_s).all() and np.isfinite(found.transfer_s).all()):
        return None
    return noise_floor(found.own_s, found.wait_s + found.transfer_s)


def recurrence(culprit: Culprit, repeats: Sequence[Diagnosis]) -> tuple[int, int]:
    """Numbers of repeats in which its part is slow, and in which its rank is, on any node."""
    by_part = (any(each.part == culprit.part for each in one.culprits) for one in repeats)
    by_rank = (any(_same_rank(each, culprit) for each in one.culprits) for one in repeats)
    return sum(by_part), sum(by_rank)


def nodes_of_moving_rank(culprit: Culprit, repeats: Sequence[Diagnosis]) -> list[str]:
    """Nodes on which a rank is slow that is slow in more repeats than its node; empty otherwise."""
    by_part, by_rank = recurrence(culprit, repeats)
    every = (each for one in repeats for each in one.culprits)
    nodes = sorted({each.host for each in every if _same_rank(each, culprit) and each.host})
    return nodes if by_rank > by_part and len(nodes) > 1 else []


def _same_rank(one: Culprit, other: Culprit) -> bool:
    return one.kind == other.kind == "rank" and one.ranks == other.ranks


def repeated_culprits(repeats: Sequence[Diagnosis]) -> list[Culprit]:
    """Culprits of all repeats whose part or rank is slow in at least half of the repeats, highest cost
    first."""
    every = [each for diagnosis in repeats for each in diagnosis.culprits]
    found = [each for each in every if 2 * max(recurrence(each, repeats)) >= len(repeats)]
    return sorted(found, key=lambda each: -each.cost_s)


def _slow_ranks(found: RankSteps, blame: Floats, step_s: float) -> list[Culprit]:
    whole = (0, found.own_s.shape[1] - 1)
    persistent = slow_ranks(found.own_s, found.nodes)
    half = [] if persistent else slow_half(found.own_s, found.nodes)
    persistent = persistent or half
    ranges = dict.fromkeys(persistent, whole)
    for episode in find_episodes(found.own_s):
        ranges.setdefault(episode.rank, (episode.first, episode.last))
    costs = _costs(found, ranges, blame)
    groups = _by_node(found, ranges, set(persistent))
    if len({found.hosts[rank] for rank in half}) > 1:
        groups = [("nodes", half), *(each for each in groups if each[1][0] not in half)]
    made = [
        _culprit(found, ranks, ranges, costs, step_s, kind=kind, persistent=ranks[0] in persistent)
        for kind, ranks in groups
    ]
    return [each for each in made if each.share >= LEAST_COST]


def _costs(found: RankSteps, ranges: dict[int, tuple[int, int]], blame: Floats) -> dict[int, SecondsInterval]:
    """Seconds per step that all these ranks cost together, divided among them by their blame."""
    if not ranges:
        return {}
    usual = median_of_others(found.own_s)
    mended, charged = found.own_s.copy(), {}
    for rank, (first, last) in ranges.items():
        part = slice(first, last + 1)
        mended[rank, part] = np.minimum(mended[rank, part], usual[rank, part])
        charged[rank] = float(blame[rank, part].sum())
    saved = mean_interval(found.own_s.max(axis=0) - mended.max(axis=0))
    whole = sum(charged.values()) or 1.0
    return {rank: saved.scaled(seconds / whole) for rank, seconds in charged.items()}


def _by_node(
    found: RankSteps, ranges: dict[int, tuple[int, int]], persistent: set[int]
) -> list[tuple[Kind, list[int]]]:
    """Slow ranks grouped: all of a node with several ranks at the same time, and single ones."""
    groups: list[tuple[Kind, list[int]]] = []
    left = dict(ranges)
    nodes = [ranks for part in set(ranges.values()) for ranks in found.nodes_between(*part).values()]
    for ranks in nodes:
        together = len(ranks) > 1 and all(rank in left for rank in ranks)
        if together and not found.hosts_between(*_union(ranges, ranks))[ranks[0]]:
            continue
        if together and (persistent.issuperset(ranks) or _overlap([ranges[rank] for rank in ranks])):
            groups.append(("node", ranks))
            for rank in ranks:
                del left[rank]
    return groups + [("rank", [rank]) for rank in left]


def _union(ranges: dict[int, tuple[int, int]], ranks: list[int]) -> tuple[int, int]:
    return min(ranges[rank][0] for rank in ranks), max(ranges[rank][1] for rank in ranks)


def _overlap(ranges: list[tuple[int, int]]) -> bool:
    """Whether these ranges of columns share at least half of their union."""
    shared = min(last for _, last in ranges) - max(first for first, _ in ranges) + 1
    union = max(last for _, last in ranges) - min(first for first, _ in ranges) + 1
    return 2 * shared >= union


def _culprit(
    found: RankSteps,
    ranks: list[int],
    ranges: dict[int, tuple[int, int]],
    costs: dict[int, SecondsInterval],
    step_s: float,
    *,
    kind: Kind,
    persistent: bool,
) -> Culprit:
    first, last = _union(ranges, ranks)
    part = slice(first, last + 1)
    own = found.own_s[:, part]
    excess = _above_others(own, ranks)
    longer = {
        name: float(_above_others(each[:, part], ranks).mean()) for name, each in found.phases_s.items()
    }
    host = found.hosts_between(first, last)[ranks[0]]
    name, others = f"rank {found.rank_ids[ranks[0]]}" + (f" on {host}" if host else ""), ""
    if kind == "node":
        name = node_name(host)
    elif kind == "nodes":
        slow = {found.hosts[rank] for rank in ranks}
        name, others = (", ".join(sorted(each)) for each in (slow, found.nodes.keys() - slow))
        host = ""
    return Culprit(
        kind,
        name,
        host,
        tuple(found.rank_ids[rank] for rank in ranks),
        max(longer, key=longer.__getitem__) if longer else "step_s",
        mean_interval(excess),
        total(costs[rank] for rank in ranks),
        step_s,
        persistent,
        int(found.steps[first]),
        int(found.steps[last] + found.counts[last] - 1),
        int(found.counts[part].sum()),
        float(np.isin(own.argmax(axis=0), ranks).mean()),
        other_nodes=others,
    )


def _above_others(seconds: Floats, ranks: list[int]) -> Floats:
    """Mean over these ranks minus the median of all others, by step."""
    return np.asarray(seconds[ranks].mean(axis=0) - np.median(np.delete(seconds, ranks, axis=0), axis=0))


def _slow_links(
    found: RankSteps, links: Sequence[LinkRate], floor: NoiseFloor | None, step_s: float
) -> list[Culprit]:
    """Slow links under exposed transfer. A collective is as slow as its slowest link: that one is charged.

    At the usual rate R instead of r, transfer would take r / R of its time. Only exposed transfer after the
    arrival of the last rank is on record, as the minimum over ranks. Transfer under compute, and during the
    wait for a late rank, also takes longer on the slow link, so the excess is a lower bound of the link's own
    delay.
    """
    if floor is None:
        return []
    transfer = found.transfer_s.mean(axis=0) + floor.floor_s
    steps = (int(found.steps[0]), int(found.steps[-1] + found.counts[-1] - 1), int(found.counts.sum()))
    for link in find_slow_links(links)[:1]:
        excess = mean_interval(transfer * (1 - link.bytes_per_s / link.usual_bytes_per_s))
        phase = "comm_transfer_s"
        made = Culprit("link", link.name, "", (), phase, excess, excess, step_s, True, *steps, link=link)
        return [made] if made.share >= LEAST_COST else []
    return []
