"""The network that a run used, from the logs of NCCL and the counters of links on its nodes.

With NCCL, the verdict is about transports and adapters. With gloo, it is about interfaces: gloo has no log.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from disttrain.records.communication import LinkTraffic, NodeFabric

LONG_INIT_S = 60.0
"""Start of a communicator that is reported."""
UNEVEN = 1.25
"""Ratio of the bytes of the busiest and the least busy adapter of a node that is reported."""
OTHER_SHARE = 0.1
"""Share of a node's bytes over links that training should not use that is reported."""
LEAST_BYTES = 2**20
"""Traffic of a node below this size, in bytes, shows nothing."""
_NODES_NAMED = 4


class Finding(NamedTuple):
    """One difference between the expected and the used network."""

    code: str
    severity: Literal["problem", "note"]
    """A `problem` costs speed or shows an error; a `note` explains."""
    message: str


class NetworkVerdict(NamedTuple):
    """Verdict on the network of a run."""

    verdict: Literal["as_expected", "problems", "unproven"]
    """`unproven`: neither channels in a log of NCCL nor counters of links show what the run used."""
    conclusion: str
    """One sentence."""
    transport: str
    """Transport between the nodes: `NET/IB`, `NET/Socket`, `NET/<plugin>`, `gloo over <interface>`; within
    one node `P2P` or `SHM`; `unknown`."""
    findings: list[Finding]
    """Problems first."""


def judge(backend: str | None, nodes: Sequence[NodeFabric]) -> NetworkVerdict:
    """The verdict on nodes that have links, a log of NCCL, or neither."""
    findings = [*(_nccl_findings(nodes) if backend == "nccl" else ()), *_link_findings(nodes)]
    findings.sort(key=lambda finding: finding.severity != "problem")
    transport = _nccl_transport(nodes) if backend == "nccl" else _gloo_transport(nodes)
    problems = [finding for finding in findings if finding.severity == "problem"]
    if problems:
        more = f" ({len(problems) - 1} more problems)" if len(problems) > 1 else ""
        return NetworkVerdict("problems", f"{problems[0].message}{more}.", transport, findings)
    proof, reason = _evidence(backend, nodes, transport)
    if proof:
        return NetworkVerdict("as_expected", f"{proof}.", transport, findings)
    text = f"No evidence shows the network that the run used: {reason}."
    return NetworkVerdict("unproven", text, transport, findings)


def traffic(*links: LinkTraffic) -> int:
    """Bytes sent and received."""
    return sum(link.sent_bytes + link.received_bytes for link in links)


def _evidence(backend: str | None, nodes: Sequence[NodeFabric], transport: str) -> tuple[str, str]:
    """What a log or a counter shows of the network, or else the reason why none does.

    Several machines need channels over the network or traffic over links. One machine, which may stand for
    several nodes, needs channels within it.
    """
    ports = backend == "nccl" and any(node.expected_adapters for node in nodes)
    of_nodes = [node.links for node in nodes]
    if backend == "nccl" and (ports or any(link.expected for links in of_nodes for link in links)):
        # other traffic uses the rest
        of_nodes = [[link for link in links if link.expected] for links in of_nodes]
    links = [link for links in of_nodes for link in links]
    names = sorted({link.name for links in of_nodes for link in _carrying(links)})
    carried = f"traffic of the measured steps went over {', '.join(names)}" if names else ""
    silent = "no link carried traffic"
    if not links:
        silent = f"no counter of {'an expected adapter' if ports else 'a link'} was read"
    elif not any(link.seconds for link in links):
        silent = "the measured steps were shorter than the interval of the samples"
    if backend != "nccl":
        return carried and f"gloo has no log; {carried}", silent
    logs = [node.nccl for node in nodes if node.nccl]
    within, several = any(log.transports for log in logs), len({node.host for node in nodes}) > 1
    if channels := sum(log.network_channels for log in logs):
        count = max(len(log.adapters) for log in logs)
        over = f" over {count} adapter{'s' if count > 1 else ''} of each node" if count else ""
        direct = channels == sum(log.gpudirect_channels for log in logs)
        with_ = " with GPUDirect on all channels of the logged ranks" if direct else ""
        return f"NCCL connects the nodes by {transport}{over}{with_}", ""
    if within and not several:
        return f"NCCL connects the ranks by {transport}; no channel uses the network", ""
    reason = f"NCCL's log has no channel {'over the network' if within else 'line'}"
    if not logs:
        reason = next((node.nccl_reason for node in nodes if node.nccl_reason), "NCCL has no log")
    if not several:
        return "", reason
    return carried and f"{reason}; {carried}", f"{reason}, and {silent}"


def _carrying(links: Sequence[LinkTraffic]) -> list[LinkTraffic]:
    """The links of a node that carried enough, or the busiest one where only all together did."""
    if traffic(*links) < LEAST_BYTES:
        return []
    return [link for link in links if traffic(link) >= LEAST_BYTES] or [max(links, key=traffic)]


def _nccl_transport(nodes: Sequence[NodeFabric]) -> str:
    """The transports between nodes if there are any, else those within a node; the most used one first."""
    counts = sum((Counter(node.nccl.transports) for node in nodes if node.nccl), Counter[str]())
    network = [name for name in counts if name.startswith(("NET/", "COLLNET"))]
    return ", ".join(sorted(network or counts, key=lambda name: -counts[name])) or "unknown"


def _gloo_transport(nodes: Sequence[NodeFabric]) -> str:
    expected = sorted({link.name for node in nodes for link in node.links if link.expected})
    return f"gloo over {', '.join(expected)}" if expected else "unknown"


def _nccl_findings(nodes: Sequence[NodeFabric]) -> Iterator[Finding]:
    logged = [(node, node.nccl, set(node.expected_adapters or ())) for node in nodes if node.nccl]
    slow = [entry for entry in logged if entry[2] and "NET/Socket" in entry[1].transports]
    if slow:
        _, log, ports = slow[0]
        over = f" over {', '.join(log.interfaces)}" if log.interfaces else ""
        have = f"{_named([node for node, _, _ in slow])} {'has' if len(slow) == 1 else 'have'} {len(ports)}"
        text = f"NCCL connects the nodes by TCP sockets{over}, although {have} active RDMA port"
        yield Finding("transport", "problem", text + ("s" if len(ports) > 1 else ""))
    logs = [log for _, log, _ in logged if "NET/Socket" not in log.transports]
    channels = sum(log.network_channels for log in logs)
    # NCCL sends through host memory by default where GPUs have no NVLink
    if staged := channels - sum(log.gpudirect_channels for log in logs):
        text = f"{staged} of {channels} channels between nodes go through host memory, without GPUDirect RDMA"
        yield Finding("gpudirect", "problem" if staged == channels else "note", text)
    differences = defaultdict[str, list[NodeFabric]](list)
    for node, log, ports in logged:
        used = set(log.adapters)
        if ports - used and used:
            differences[f"NCCL does not use {', '.join(sorted(ports - used))}"].append(node)
        if used - ports and ports:
            differences[f"NCCL also uses {', '.join(sorted(used - ports))}"].append(node)
    for text, where in differences.items():
        yield Finding("adapters", "note" if " also " in text else "problem", f"{text} on {_named(where)}")
    warned = [(node, log) for node, log, _ in logged if log.warnings]
    if warned:
        count, hosts = sum(log.warning_count for _, log in warned), _named([node for node, _ in warned])
        text = f"NCCL logged {count} warning{'s' if count > 1 else ''} on {hosts}: {warned[0][1].warnings[0]}"
        yield Finding("warnings", "problem", text)
    if shared := [node for node, log, _ in logged if "SHM" in log.transports]:
        text = f"GPUs of {_named(shared)} exchange data through host memory (SHM), not by peer access"
        yield Finding("shared-memory", "note", text)
    slowest = max((log.init_s or 0.0 for _, log, _ in logged), default=0.0)
    if slowest > LONG_INIT_S:
        yield Finding("init-time", "note", f"The start of a communicator took {slowest:.0f} s")
    versions = Counter(log.version for _, log, _ in logged if log.version)
    if len(versions) > 1:
        counts = sorted(versions.items())
        listed = ", ".join(f"{name} on {count} node{'s' if count > 1 else ''}" for name, count in counts)
        yield Finding("versions", "problem", f"The nodes run different versions of NCCL: {listed}")


def _link_findings(nodes: Sequence[NodeFabric]) -> Iterator[Finding]:
    """Traffic over other links than the expected ones, and unevenly used adapters."""
    other = defaultdict[str, list[tuple[float, NodeFabric]]](list)
    for node in nodes:
        kinds = {link.kind for link in node.links if link.expected}
        # where interfaces are expected, RDMA ports do not count: packets of IPoIB appear in both counters
        counted = [link for link in node.links if kinds and ("adapter" in kinds or link.kind in kinds)]
        if (total := traffic(*counted)) >= LEAST_BYTES:
            for link in counted:
                if not link.expected and traffic(link) > OTHER_SHARE * total:
                    other[link.name].append((traffic(link) / total, node))
    for name, where in other.items():
        planned = ", ".join(link.name for link in where[0][1].links if link.expected)
        text = f"{name} carried {max(share for share, _ in where):.0%} of the bytes of"
        # data of the training may come over another link
        problem = any(share > 1 / 2 and not _uses_expected(node) for share, node in where)
        text = f"{text} {_named([node for _, node in where])}; the traffic of training should use {planned}"
        yield Finding("interface", "problem" if problem else "note", text)
    for node in nodes:
        adapters = [link for link in node.links if link.expected and link.kind == "adapter"]
        amounts = sorted((traffic(link), link.name) for link in adapters)
        if amounts and amounts[-1][0] >= LEAST_BYTES and amounts[-1][0] > UNEVEN * amounts[0][0]:
            (least, name), (most, _) = amounts[0], amounts[-1]
            text = f"{name} of {node.host} carried {least / most:.0%} of the bytes of the busiest adapter"
            yield Finding("uneven", "note", text)


def _uses_expected(node: NodeFabric) -> bool:
    """Whether NCCL's log lists exactly the expected adapters, so that other links carry other traffic."""
    expected, log = set(node.expected_adapters or ()), node.nccl
    return log is not None and set(log.adapters) == expected != set() and "NET/Socket" not in log.transports


def _named(nodes: Sequence[NodeFabric]) -> str:
    more = len(nodes) - _NODES_NAMED
    return ", ".join(node.host for node in nodes[:_NODES_NAMED]) + (f" and {more} more" if more > 0 else "")
