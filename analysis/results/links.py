"""Slow links between nodes, from measured rates of neighbouring nodes in both directions.

A synchronous collective moves at the rate of its slowest link, and all ranks leave together. So step records
show a slow link as transfer on every rank and cannot name the link. Rates between pairs of nodes can: a slow
link of a node slows every pair with that node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from analysis.read.attempts import RunAttempt
from analysis.read.run import Run
from analysis.read.samples import OTHER_LOAD

SLOW = 0.5
"""A direction is slow below this fraction of the usual rate."""
_USUAL = 0.75
"""Quantile of the rates that is usual: in a ring of three nodes, one slow link slows 4 of 6 directions."""

SHARED_MACHINE, LOADED = "the nodes share a machine", "other processes used the processors"
"""Reasons not to judge rates of links: they are those of a loaded machine."""

LinkRates = Mapping[tuple[str, str], float]
"""Bytes per second from one node to another."""


class SlowLink(NamedTuple):
    """A link that moves data at less than half of the usual rate."""

    name: str
    bytes_per_s: float
    """Median rate of its slow directions."""
    usual_bytes_per_s: float


def link_rates(attempts: Sequence[RunAttempt]) -> LinkRates:
    """Rates between the nodes of a run, of the newest attempt whose pre-flight measured them; empty without
    any."""
    return next((each.link_rates for each in reversed(attempts) if each.link_rates), {})


def unjudged_links(run: Run) -> str:
    """Reason not to judge measured rates of links; empty without one."""
    if run.one_machine:
        return SHARED_MACHINE
    return LOADED if (run.busy_share or 0.0) >= OTHER_LOAD else ""


def node_name(host: str) -> str:
    """`node c04` for the host c04; a host whose name begins with `node` alone."""
    return host if host.lower().startswith("node") else f"node {host}"


def find_slow_link(rates: LinkRates) -> SlowLink | None:
    """The part that contains the slowest direction and explains most slow ones: this direction, the pair of
    its nodes, or one of both nodes, sending, receiving or all.

    Two nodes whose two directions are equally slow cannot be told from a slow network: none is found.
    """
    if not rates:
        return None
    usual = float(np.quantile([*rates.values()], _USUAL, method="higher"))
    slow = {direction for direction, rate in rates.items() if rate < SLOW * usual}
    source, target = min(rates, key=lambda direction: rates[direction])
    first, second = node_name(source), node_name(target)
    parts = {
        f"the link from {first} to {second}": {(source, target)},
        f"the link between {first} and {second}": {(source, target), (target, source)},
    }
    for node in (source, target):
        sent, received = ({each for each in rates if each[end] == node} for end in (0, 1))
        link = f"the link of {node_name(node)}"
        parts |= {link: sent | received, f"sending on {link}": sent, f"receiving on {link}": received}
    slow_parts = {name: directions for name, directions in parts.items() if directions <= slow}
    if not slow_parts:
        return None
    name = max(slow_parts, key=lambda part: len(slow_parts[part]))  # of equal ones the first
    return SlowLink(name, float(np.median([rates[each] for each in slow_parts[name]])), usual)
