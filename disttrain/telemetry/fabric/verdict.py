"""Verdict on the network of a run: pure, from the logs and counters of its nodes.

With NCCL, the verdict is about transports and adapters. With gloo, it is about interfaces: gloo has no log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from disttrain.records.fabric import FabricFinding, FabricVerdict, LinkTraffic, NodeFabric

LONG_INIT_S = 60.0
"""Start of a communicator that is reported."""
UNEVEN = 1.25
"""Ratio of the bytes of the busiest and the least busy adapter of a node that is reported."""
OTHER_SHARE = 0.1
"""Share of a node's bytes over links that training should not use that is reported."""
LEAST_BYTES = 2**20
"""Traffic below this size, in bytes, shows nothing."""
_NODES_NAMED = 4


def judge(backend: str | None, nodes: Sequence[NodeFabric]) -> FabricVerdict:
    """The verdict on nodes that have links, a log of NCCL, or neither."""
    if backend == "nccl":
        findings, transport = list(_nccl_findings(nodes)), _nccl_transport(nodes)
        proven = any(node.nccl is not None for node in nodes)
    else:
        findings, transport = [], _gloo_transport(nodes)
        proven = any(_bytes(node.links) >= LEAST_BYTES for node in nodes)
    findings += _link_findings(nodes)
    findings.sort(key=lambda finding: finding.severity != "problem")
    problems = [finding for finding in findings if finding.severity == "problem"]
    if problems:
        more = f" ({len(problems) - 1} more problems)" if len(problems) > 1 else ""
        return FabricVerdict(
            verdict="problems",
            conclusion=f"{problems[0].message}{more}.",
            transport=transport,
            findings=findings,
        )
    if not proven:
        reason = next((node.nccl_reason for node in nodes if node.nccl_reason), "no link carried traffic")
        text = f"No evidence shows the network that the run used: {reason}."
        return FabricVerdict(verdict="unproven", conclusion=text, transport=transport, findings=findings)
    return FabricVerdict(
        verdict="as_expected",
        conclusion=_well(backend, transport, nodes),
        transport=transport,
        findings=findings,
    )


def link_shares(links: Sequence[LinkTraffic]) -> dict[str, float]:
    """Share of each link in the sent and received bytes of the links of its kind, by name."""
    totals: Counter[str] = Counter()
    for link in links:
        totals[link.kind] += link.sent_bytes + link.received_bytes
    return {
        link.name: (link.sent_bytes + link.received_bytes) / totals[link.kind]
        for link in links
        if totals[link.kind]
    }


def _well(backend: str | None, transport: str, nodes: Sequence[NodeFabric]) -> str:
    """The conclusion on a network without a problem."""
    if backend != "nccl":
        carrying = sorted(
            {link.name for node in nodes for link in node.links if _bytes([link]) >= LEAST_BYTES}
        )
        return f"gloo has no log; traffic of the measured steps went over {', '.join(carrying)}."
    logs = [node.nccl for node in nodes if node.nccl is not None]
    network = sum(log.network_channels for log in logs)
    direct = sum(log.gpudirect_channels for log in logs)
    if not network:
        return f"NCCL connects the ranks by {transport}; no channel uses the network."
    adapters = max(len(log.adapters) for log in logs)
    parts = [f"NCCL connects the nodes by {transport}"]
    if adapters:
        parts.append(f"over {adapters} adapter{'s' if adapters > 1 else ''} of each node")
    if direct == network:
        parts.append("with GPUDirect on all channels of the logged ranks")
    return f"{' '.join(parts)}."


def _nccl_transport(nodes: Sequence[NodeFabric]) -> str:
    """The transports between nodes if there are any, else those within a node."""
    counts: Counter[str] = Counter()
    for node in nodes:
        counts.update(node.nccl.transports if node.nccl else {})
    network = [name for name in counts if name.startswith(("NET/", "COLLNET"))]
    chosen = network or list(counts)
    return ", ".join(sorted(chosen, key=lambda name: -counts[name])) or "unknown"


def _gloo_transport(nodes: Sequence[NodeFabric]) -> str:
    expected = sorted({link.name for node in nodes for link in node.links if link.expected})
    return f"gloo over {', '.join(expected)}" if expected else "unknown"


def _nccl_findings(nodes: Sequence[NodeFabric]) -> Iterator[FabricFinding]:
    for check in _CHECKS:
        yield from check(nodes)
    versions = Counter(node.nccl.version for node in nodes if node.nccl and node.nccl.version)
    if len(versions) > 1:
        listed = ", ".join(f"{version} on {_nodes(count)}" for version, count in sorted(versions.items()))
        yield _problem("versions", f"The nodes run different versions of NCCL: {listed}")


def _transport(nodes: Sequence[NodeFabric]) -> Iterator[FabricFinding]:
    """Sockets in spite of active RDMA ports."""
    slow = [
        node
        for node in nodes
        if node.nccl and "NET/Socket" in node.nccl.transports and any(map(_is_expected_adapter, node.links))
    ]
    if slow:
        ports = sum(map(_is_expected_adapter, slow[0].links))
        log = slow[0].nccl
        over = f" over {', '.join(log.interfaces)}" if log and log.interfaces else ""
        yield _problem(
            "transport",
            f"NCCL connects the nodes by TCP sockets{over}, although {_named(slow)} {_have(slow)} "
            f"{ports} active RDMA port{'s' if ports > 1 else ''}",
        )


def _gpudirect(nodes: Sequence[NodeFabric]) -> Iterator[FabricFinding]:
    """Channels between adapters and host memory. NCCL sends so by default where GPUs have no NVLink."""
    logs = [node.nccl for node in nodes if node.nccl and "NET/Socket" not in node.nccl.transports]
    network = sum(log.network_channels for log in logs)
    staged = network - sum(log.gpudirect_channels for log in logs)
    if staged:
        text = f"{staged} of {network} channels between nodes go through host memory, without GPUDirect RDMA"
        yield (_problem if staged == network else _note)("gpudirect", text)


def _adapters(nodes: Sequence[NodeFabric]) -> Iterator[FabricFinding]:
    """Adapters that NCCL found against those of the node."""
    for missing, text in ((True, "does not use"), (False, "also uses")):
        found: dict[str, list[NodeFabric]] = {}
        for node in nodes:
            if node.nccl is None or not node.nccl.adapters:
                continue
            expected = {link.name for link in node.links if _is_expected_adapter(link)}
            used = set(node.nccl.adapters)
            names = sorted(expected - used if missing else used - expected)
            if expected and names:
                found.setdefault(", ".join(names), []).append(node)
        for listed, where in found.items():
            message = f"NCCL {text} {listed} on {_named(where)}"
            yield _problem("adapters", message) if missing else _note("adapters", message)


def _shared_memory(nodes: Sequence[NodeFabric]) -> Iterator[FabricFinding]:
    slow = [node for node in nodes if node.nccl and "SHM" in node.nccl.transports]
    if slow:
        yield _note(
            "shared-memory",
            f"GPUs of {_named(slow)} exchange data through host memory (SHM), not by peer access",
        )


def _warnings(nodes: Sequence[NodeFabric]) -> Iterator[FabricFinding]:
    warned = [node for node in nodes if node.nccl and node.nccl.warnings]
    if warned:
        count = sum(node.nccl.warning_count for node in warned if node.nccl)
        first = warned[0].nccl.warnings[0] if warned[0].nccl else ""
        plural = "s" if count > 1 else ""
        yield _problem("warnings", f"NCCL logged {count} warning{plural} on {_named(warned)}: {first}")


def _init_time(nodes: Sequence[NodeFabric]) -> Iterator[FabricFinding]:
    slowest = max((node.nccl.init_s or 0.0 for node in nodes if node.nccl), default=0.0)
    if slowest > LONG_INIT_S:
        yield _note("init-time", f"The start of a communicator took {slowest:.0f} s")


_CHECKS: tuple[Callable[[Sequence[NodeFabric]], Iterator[FabricFinding]], ...] = (
    _transport,
    _gpudirect,
    _adapters,
    _warnings,
    _shared_memory,
    _init_time,
)


def _link_findings(nodes: Sequence[NodeFabric]) -> Iterator[FabricFinding]:
    """Traffic over other links than the expected ones, and unevenly used adapters."""
    other: dict[str, list[tuple[float, NodeFabric]]] = {}
    for node in nodes:
        for name, share in _unexpected_shares(node.links).items():
            if share > OTHER_SHARE:
                other.setdefault(name, []).append((share, node))
    for name, where in other.items():
        share = max(share for share, _ in where)
        planned = ", ".join(link.name for link in where[0][1].links if link.expected)
        text = f"{name} carried {share:.0%} of the bytes of {_named([node for _, node in where])}"
        # data of the training may come over another link
        make = _problem if any(part > 1 / 2 and not _is_proven(node) for part, node in where) else _note
        yield make("interface", f"{text}; the traffic of training should use {planned}")
    for node in nodes:
        adapters = [link for link in node.links if _is_expected_adapter(link)]
        amounts = {link.name: _bytes([link]) for link in adapters}
        if len(amounts) > 1 and max(amounts.values()) >= LEAST_BYTES:
            least = min(amounts, key=amounts.__getitem__)
            if max(amounts.values()) > UNEVEN * amounts[least]:
                text = f"{least} of {node.host} carried {amounts[least] / max(amounts.values()):.0%}"
                yield _note("uneven", f"{text} of the bytes of the busiest adapter")


def _is_proven(node: NodeFabric) -> bool:
    """Whether NCCL's log lists exactly the expected adapters, so that other links carry other traffic."""
    expected = {link.name for link in node.links if _is_expected_adapter(link)}
    log = node.nccl
    return log is not None and set(log.adapters) == expected != set() and "NET/Socket" not in log.transports


def _unexpected_shares(links: Sequence[LinkTraffic]) -> dict[str, float]:
    """Share of each link that training should not use, by name; empty without expected links.

    Where interfaces are expected, RDMA ports do not count: packets of IPoIB appear in both counters.
    """
    expected = {link.kind for link in links if link.expected}
    counted = [link for link in links if "adapter" in expected or link.kind in expected]
    total = _bytes(counted)
    if not expected or total < LEAST_BYTES:
        return {}
    return {link.name: _bytes([link]) / total for link in counted if not link.expected}


def _is_expected_adapter(link: LinkTraffic) -> bool:
    return link.kind == "adapter" and link.expected


def _bytes(links: Sequence[LinkTraffic]) -> int:
    return sum(link.sent_bytes + link.received_bytes for link in links)


def _named(nodes: Sequence[NodeFabric]) -> str:
    names = [node.host for node in nodes[:_NODES_NAMED]]
    more = len(nodes) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count > 1 else ''}"


def _have(nodes: Sequence[NodeFabric]) -> str:
    return "has" if len(nodes) == 1 else "have"


def _problem(code: str, message: str) -> FabricFinding:
    return FabricFinding(code=code, severity="problem", message=message)


def _note(code: str, message: str) -> FabricFinding:
    return FabricFinding(code=code, severity="note", message=message)
