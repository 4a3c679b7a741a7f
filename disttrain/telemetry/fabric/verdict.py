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
    else:
        findings, transport = [], _gloo_transport(nodes)
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
    if (reason := _missing_evidence(backend, nodes)) is not None:
        text = f"No evidence shows the network that the run used: {reason}."
        return FabricVerdict(verdict="unproven", conclusion=text, transport=transport, findings=findings)
    return FabricVerdict(
        verdict="as_expected",
        conclusion=_well(backend, transport, nodes),
        transport=transport,
        findings=findings,
    )


def _missing_evidence(backend: str | None, nodes: Sequence[NodeFabric]) -> str | None:
    """The reason why neither a log nor a counter shows the network of the run; None if one does.

    Several nodes need channels over the network or traffic over links. One machine, which may stand for
    several nodes, needs channels within it.
    """
    if backend != "nccl":
        return None if _carrying(backend, nodes) else _no_traffic(backend, nodes)
    several = _are_several(nodes)
    logs = [node.nccl for node in nodes if node.nccl is not None]
    if any(log.network_channels or (log.transports and not several) for log in logs):
        return None
    if not several:
        return _no_channels(nodes)
    return None if _carrying(backend, nodes) else f"{_no_channels(nodes)}, and {_no_traffic(backend, nodes)}"


def _no_channels(nodes: Sequence[NodeFabric]) -> str:
    """The reason why no log shows a channel over the network."""
    logs = [node.nccl for node in nodes if node.nccl is not None]
    if logs:
        within = any(log.transports for log in logs)
        return f"NCCL's log has no channel {'over the network' if within else 'line'}"
    return next((node.nccl_reason for node in nodes if node.nccl_reason), "NCCL has no log")


def _no_traffic(backend: str | None, nodes: Sequence[NodeFabric]) -> str:
    """The reason why no counter shows the network."""
    links = [link for node in nodes for link in _evidence_links(backend, node)]
    if not links:
        adapters = backend == "nccl" and any(map(_expected_adapters, nodes))
        return f"no counter of {'an expected adapter' if adapters else 'a link'} was read"
    if not any(link.seconds for link in links):
        return "the measured steps were shorter than the interval of the samples"
    return "no link carried traffic"


def _carrying(backend: str | None, nodes: Sequence[NodeFabric]) -> list[str]:
    """Names of the links whose traffic shows the network."""
    found: set[str] = set()
    for node in nodes:
        links = _evidence_links(backend, node)
        if _bytes(links) >= LEAST_BYTES:
            found |= {link.name for link in links if _bytes([link]) >= LEAST_BYTES}
            found = found or {max(links, key=lambda link: _bytes([link])).name}
    return sorted(found)


def _evidence_links(backend: str | None, node: NodeFabric) -> list[LinkTraffic]:
    """Links whose traffic shows the network: with NCCL the expected ones, as other traffic uses the rest."""
    expected = [link for link in node.links if link.expected]
    return expected if backend == "nccl" and (expected or _expected_adapters(node)) else node.links


def _are_several(nodes: Sequence[NodeFabric]) -> bool:
    """Whether the nodes are several machines: one may stand for several nodes."""
    return len({node.host for node in nodes}) > 1


def _well(backend: str | None, transport: str, nodes: Sequence[NodeFabric]) -> str:
    """The conclusion on a network without a problem."""
    if backend != "nccl":
        carrying = ", ".join(_carrying(backend, nodes))
        return f"gloo has no log; traffic of the measured steps went over {carrying}."
    logs = [node.nccl for node in nodes if node.nccl is not None]
    network = sum(log.network_channels for log in logs)
    direct = sum(log.gpudirect_channels for log in logs)
    if not network and _are_several(nodes):
        carrying = ", ".join(_carrying(backend, nodes))
        return f"{_no_channels(nodes)}; traffic of the measured steps went over {carrying}."
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
        if node.nccl and "NET/Socket" in node.nccl.transports and _expected_adapters(node)
    ]
    if slow:
        ports = len(_expected_adapters(slow[0]))
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
            expected = _expected_adapters(node)
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
    expected = _expected_adapters(node)
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


def _expected_adapters(node: NodeFabric) -> set[str]:
    """Names of the expected ports, also of those without a counter; older records have only the others."""
    if node.expected_adapters is not None:
        return set(node.expected_adapters)
    return {link.name for link in node.links if _is_expected_adapter(link)}


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
