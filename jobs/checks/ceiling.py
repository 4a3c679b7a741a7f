"""Ceiling of the bus bandwidth of an all-reduce, and the node or link that is slow. Pure functions.

Sources: docs/your-cluster.md. A large all-reduce moves each byte over the slowest part of a ring: its bus
bandwidth cannot exceed the rate by which a node reaches the others. NCCL on two nodes uses trees that send
each byte over the link once instead of 2(N-1)/N times, so that its bus bandwidth reaches up to twice that
rate (nccl/src/graph/tuning.cc). Two nodes therefore have a ceiling of their own. Within one node, the ceiling
is the rate of a GPU's NVLinks to the others; NVSwitch that adds up the values itself sends each byte once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.checks.finding import Finding
from jobs.checks.node_facts import NodeFacts

_WARN_BELOW = {"nccl": 0.70, "nccl-tcp": 0.30, "gloo": 0.30}
"""Fraction of the link rate below which there is a warning. NCCL over RDMA reaches 91 to 97 % of it. gloo
and NCCL over TCP copy through the host's memory, and have no published figure: the fraction is a guess on the
safe side."""
_WARN_BELOW_NVLINK = 0.60
"""The same within a node, of the rate of a GPU's NVLinks. Rings reach 76 to 82 % of it. Over PCIe nothing is
judged: without peer-to-peer access data is copied through the host's memory, at an unknown rate."""
_LARGE_BYTES = {"nccl": 2**30, "gloo": 16 * 2**20}
"""Smaller messages do not reach the ceiling, so they are not judged against it."""
_SLOW_LINK = 0.5
"""A direction is slow below this fraction of the usual rate."""
_BAD_LINK = 0.25
"""A node whose link is below this fraction is not used. Between the two, other jobs may load the link."""


@dataclass(frozen=True)
class Ceiling:
    """Limits of the bus bandwidth in bytes per second."""

    most: float
    """Largest possible value."""
    warn_below: float
    from_bytes: int
    """Size of an all-reduce from which the limits hold."""


def ceiling(
    nodes: int, node_link_bytes_per_s: float | None, backend: str, *, tcp: bool = False
) -> Ceiling | None:
    """The ceiling between nodes; None for one node or an unknown rate of the links.

    `tcp`: the ranks reach other nodes over an interface of the kernel, without RDMA.

    Limits refer to the link rate, also on two nodes: whether the algorithm that exceeds it is chosen depends
    on the NCCL version and the ranks.
    """
    if nodes < 2 or node_link_bytes_per_s is None or backend not in _LARGE_BYTES:
        return None
    factor = 2.0 if nodes == 2 and backend == "nccl" else 1.0
    transport = "nccl-tcp" if backend == "nccl" and tcp else backend
    return Ceiling(
        most=factor * node_link_bytes_per_s,
        warn_below=_WARN_BELOW[transport] * node_link_bytes_per_s,
        from_bytes=_LARGE_BYTES[backend],
    )


def ceiling_in_node(nvlink: Sequence[Any] | None, ranks: int, backend: str) -> Ceiling | None:
    """The ceiling between the GPUs of one node; None without NVLink between all of them, and without NCCL."""
    if nvlink is None or ranks < 2 or backend != "nccl":
        return None
    rate, reduces_in_switch = nvlink
    factor = 2 * (ranks - 1) / ranks if reduces_in_switch else 1.0
    return Ceiling(factor * rate, _WARN_BELOW_NVLINK * rate, _LARGE_BYTES[backend])


def link_problems(rates: Mapping[tuple[int, int], float], hosts: Sequence[str]) -> list[Finding]:
    """The problem of the slowest link by the rates of pairs (source, target), which names its node.

    The usual rate is the third quartile: in a ring of three nodes, one slow node slows 4 of 6 directions. A
    node is at fault if all of its directions are slow; of several, the one with the slowest median. Of two
    nodes, the usual rate is that of the faster direction, and no node is at fault.
    """
    slowest = min(rates.items(), key=lambda item: item[1], default=None)
    usual = sorted(rates.values())[math.ceil(0.75 * (len(rates) - 1))] if rates else 0.0
    if slowest is None or slowest[1] >= _SLOW_LINK * usual:
        return []
    (source, target), rate = slowest
    what = f"the link from {hosts[source]} to {hosts[target]}"
    at_fault: tuple[str, ...] = ()
    of_node = {node: [rates[pair] for pair in rates if node in pair] for pair in rates for node in pair}
    slow = [node for node, own in of_node.items() if max(own) < _SLOW_LINK * usual]
    for node in sorted(slow, key=lambda each: statistics.median(of_node[each]))[:1]:
        what, rate = f"the link of node {hosts[node]}", statistics.median(of_node[node])
        # between the two limits, other jobs may load the link
        at_fault = (hosts[node],) if rate < _BAD_LINK * usual else ()
    compared = f"the usual {_rate(usual)}" if len(hosts) > 2 else f"the {_rate(usual)} of the other direction"
    remedy = "resubmit without the node, and have its cable, port and adapter examined"
    if len(hosts) == 2:
        remedy = "have cable, port and adapter of both nodes examined"
    problem = f"{what} moves {_rate(rate)}, {rate / usual:.0%} of {compared}"
    return [Finding("error" if at_fault else "warning", "links", problem, remedy, hosts=at_fault)]


def all_reduce_problems(
    limits: Ceiling | None, size: int, bus_bytes_per_s: float, slowest: str | None
) -> list[Finding]:
    """A warning of a large all-reduce below its floor; `slowest` is the slowest pair, in words.

    It is no error: the floor is that of a model, and the figure names no node. `link_problems` judges nodes.
    """
    if limits is None or size < limits.from_bytes or bus_bytes_per_s >= limits.warn_below:
        return []
    name = f"; the slowest link is {slowest}" if slowest else ""
    message = (
        f"an all-reduce of {size / 2**20:.0f} MiB has a bus bandwidth of {_rate(bus_bytes_per_s)}, "
        f"{bus_bytes_per_s / limits.most:.0%} of the ceiling of {_rate(limits.most)}{name}"
    )
    remedy = "run `disttrain fabric explain` on a node; job.env.NCCL_DEBUG=INFO logs the transport"
    return [Finding("warning", "all_reduce", message, remedy)]


def not_judged(limits: Ceiling | None, nodes: int, sizes: Sequence[int]) -> str | None:
    """The slow links that neither `link_problems` nor `all_reduce_problems` finds, in one line; None if a
    ceiling or a third node exposes them.

    `sizes`: those of the measured all-reduces in bytes.
    """
    if nodes > 2:
        return None
    if limits is None:
        reason = "the link rate is unknown" if nodes == 2 else "no NVLink connects all of them"
    elif all(size < limits.from_bytes for size in sizes):
        reason = "no large all-reduce was measured"
    else:
        return None
    if nodes == 1:
        return f"the all-reduce between the GPUs of the node is not judged: {reason}"
    return (
        f"a link that is slow in both directions is not found: {reason}, and two nodes have no other links "
        "to compare with"
    )


def judged_bandwidth(
    result: Mapping[str, Any], facts: Sequence[NodeFacts], hosts: Sequence[str]
) -> tuple[dict[str, Any], list[Finding]]:
    """`records.PreflightBandwidth` of a measurement, and its problems."""
    rates = {(each["source"], each["target"]): float(each["bytes_per_s"]) for each in result["links"]}
    known = [each.link_bytes_per_s for each in facts if each.link_bytes_per_s is not None]
    link = min(known) if len(known) == len(facts) else None
    nvlink = facts[0].nvlink if len(hosts) == 1 else None
    if len(hosts) == 1:
        link, limits = None, ceiling_in_node(nvlink, result["ranks"], result["backend"])
    else:
        limits = ceiling(len(hosts), link, result["backend"], tcp=any(each.tcp for each in facts))
    problems = link_problems(rates, hosts)
    slowest = slowest_pair(rates, hosts)
    for each in result["all_reduce"]:
        problems += all_reduce_problems(limits, each["bytes"], each["bus_bytes_per_s"], slowest)
    record = {
        **result,
        "node_link_bytes_per_s": link,
        "gpu_path": "nvlink" if nvlink else None,
        "gpu_link_bytes_per_s": nvlink[0] if nvlink else None,
        "ceiling_bytes_per_s": limits.most if limits else None,
        "floor_bytes_per_s": limits.warn_below if limits else None,
        "not_judged": not_judged(limits, len(hosts), [each["bytes"] for each in result["all_reduce"]]),
    }
    return record, problems


def slowest_pair(rates: Mapping[tuple[int, int], float], hosts: Sequence[str]) -> str | None:
    """The slowest direction and its rate, in words."""
    if not rates:
        return None
    (source, target), rate = min(rates.items(), key=lambda each: each[1])
    return f"from {hosts[source]} to {hosts[target]} ({_rate(rate)})"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.1f} MB/s"
