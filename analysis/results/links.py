"""Slow links between nodes, from measured rates of neighbouring nodes in both directions.

A synchronous collective moves at the rate of its slowest link, and all ranks leave together. So step records
show a slow link as transfer on every rank and cannot name the link. Rates between pairs of nodes can: a slow
link of a node slows every pair with that node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from analysis.read.attempts import RunAttempt
from analysis.read.run import Run
from analysis.read.samples import OTHER_LOAD

SLOW = 0.5
"""A direction is slow below this fraction of the usual rate."""
_USUAL = 0.75
"""Quantile of the rates that is usual: in a ring of three nodes, one slow link slows 4 of 6 directions."""


class LinkRate(NamedTuple):
    """Rate of data from one node to another."""

    source: str
    target: str
    bytes_per_s: float


class SlowLink(NamedTuple):
    """A link that moves data at less than half of the usual rate."""

    nodes: tuple[str, ...]
    """One node, whose link is slow to all its neighbours; or source and target of one slow direction or
    pair."""
    directions: tuple[tuple[str, str], ...]
    """Slow directions, source and target."""
    bytes_per_s: float
    """Median rate of the slow directions."""
    usual_bytes_per_s: float

    @property
    def name(self) -> str:
        if len(self.nodes) == 1:
            sent = all(source == self.nodes[0] for source, _ in self.directions)
            received = all(target == self.nodes[0] for _, target in self.directions)
            side = "sending on " if sent else "receiving on " if received else ""
            return f"{side}the link of {node_name(self.nodes[0])}"
        first, second = map(node_name, self.nodes)
        if len(self.directions) == 1:
            return f"the link from {first} to {second}"
        return f"the link between {first} and {second}"


def link_rates(attempts: Sequence[RunAttempt]) -> list[LinkRate]:
    """Rates between the nodes of a run (`links.json`), of the newest attempt that has them; empty without
    any."""
    links = next((each.links for each in reversed(attempts) if each.links), None)
    if links is None:
        return []
    hosts = links.hosts
    return [LinkRate(hosts[rate.source], hosts[rate.target], rate.bytes_per_s) for rate in links.rates]


def unjudged_links(run: Run) -> str:
    """Reason not to judge measured rates of links: they are those of a loaded machine rather than of its
    links. Empty without one."""
    if run.one_machine:
        return "the nodes share a machine"
    return "other processes used the processors" if (run.busy_share or 0.0) >= OTHER_LOAD else ""


def node_name(host: str) -> str:
    """`node c04` for the host c04; a host whose name begins with `node` alone."""
    return host if host.lower().startswith("node") else f"node {host}"


def find_slow_links(rates: Sequence[LinkRate]) -> list[SlowLink]:
    """Slow links, slowest first; the fewest that explain all slow directions.

    Two nodes whose two directions are equally slow cannot be told from a slow network: none is found.
    """
    if len(rates) < 2:
        return []
    known = {(rate.source, rate.target): rate.bytes_per_s for rate in rates}
    usual = float(np.quantile([*known.values()], _USUAL, method="higher"))
    left = {direction for direction, rate in known.items() if rate < SLOW * usual}
    found = []
    while left:
        nodes, chosen = max(_explanations(known, left), key=lambda each: (len(each[1]), -len(each[0])))
        rate = float(np.median([known[direction] for direction in chosen]))
        found.append(SlowLink(nodes, tuple(sorted(chosen)), rate, usual))
        left -= set(chosen)
    return sorted(found, key=lambda link: link.bytes_per_s)


def _explanations(
    known: Iterable[tuple[str, str]], slow: set[tuple[str, str]]
) -> list[tuple[tuple[str, ...], list[tuple[str, str]]]]:
    """Candidate links, each with the slow directions that it explains."""
    directions = sorted(known)
    found: list[tuple[tuple[str, ...], list[tuple[str, str]]]] = []
    for node in sorted({end for direction in directions for end in direction}):
        sent = [each for each in directions if each[0] == node]
        received = [each for each in directions if each[1] == node]
        for group in (sent + received, sent, received):
            neighbours = {end for each in group for end in each} - {node}
            if len(neighbours) > 1 and slow.issuperset(group):
                found.append(((node,), group))
    for source, target in sorted(slow):
        pair = [each for each in ((source, target), (target, source)) if each in slow]
        found.append(((source, target), pair))
    return found
