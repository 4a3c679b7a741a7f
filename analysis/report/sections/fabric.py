"""The network that runs used: the verdict on it, and links with traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analysis.read.lines import read_record
from analysis.read.run import Run
from analysis.report.common import Column, Section, Study, item_table, places, size_table
from analysis.results.network import judge, traffic
from disttrain.records.communication import FabricRecord, NodeFabric

ORDER = 150

MOST_LINKS = 64
"""Rows of the table of links, busiest first within a node; the rest is in the run's fabric.json."""
_LOOPBACK = "gloo over lo"
"""Transport of nodes that are one machine: no network is used."""
_VERDICTS = ("problems", "unproven", "as_expected")
"""Worst first."""
_COLUMNS = (
    Column("verdict", get=lambda network: network["judged"].verdict.replace("_", " ")),
    Column("transport", get="judged.transport"),
    Column("gpudirect", "channels with GPUDirect", "share"),
    Column("nccl", "NCCL"),
    Column("links_used", "expected interfaces with traffic", "count"),
    Column("links_expected", "expected interfaces", "count"),
)
_LINK_COLUMNS = (
    Column("node"),
    Column("link", get="of.name"),
    Column("kind", get="of.kind"),
    Column("expected", get="of.expected"),
    Column("sent", "sent", "B", get="of.sent_bytes"),
    Column("received", "received", "B", get="of.received_bytes"),
    Column("share", "share of the node's bytes", "share", "link-share"),
    Column("rate", "mean rate sent", "B/s"),
    Column("line_rate_share", "share of the line rate", "share"),
)


def build(study: Study) -> Section | None:
    """None if no run used a network, or none was recorded."""
    items, findings = [], dict[str, dict[str, None]]()
    for place in places(study):
        repeats = [network for run in place.point.runs if (network := _network(run))]
        if repeats:
            worst = min(repeats, key=_rank)
            items.append((place, worst))
            for finding in worst["judged"].findings:
                findings.setdefault(finding.message, {})[place.name] = None
    if not items:
        return None
    place, shown = min(items, key=lambda item: (_rank(item[1]), -item[0].point.size))
    links = [*_links(shown["nodes"])][:MOST_LINKS]
    caption = f"Traffic of links in measured steps on {place.name}, headers of the protocols included."
    sources = [[shown["run"]]] * len(links)
    return Section(
        "fabric",
        "Network",
        f"On {place.name}: {shown['judged'].conclusion}",
        paragraphs=[f"{text} ({', '.join(names)})." for text, names in findings.items()],
        tables=[
            size_table(study, "fabric", "Network of the repeat with the worst verdict.", _COLUMNS, items),
            item_table("fabric_links", caption, _LINK_COLUMNS, links, sources=sources),
        ],
    )


def _network(run: Run) -> dict[str, Any] | None:
    """Values of `_COLUMNS`, with the run, its nodes and the verdict; None without a network, and without
    samples of it."""
    if run.metrics is None:
        return None
    record, _ = read_record(run.folder.attempt(run.metrics.attempt).fabric, FabricRecord)
    nodes = record.nodes if record else []
    sampled = any(node.nccl or node.nccl_reason or node.expected_adapters is not None for node in nodes)
    if record is None or not sampled or (len(nodes) == 1 and record.backend != "nccl"):
        return None
    judged = judge(record.backend, nodes)
    if judged.transport == _LOOPBACK:
        return None
    logs = [node.nccl for node in nodes if node.nccl]
    channels = sum(log.network_channels for log in logs)
    expected = [traffic(link) for node in nodes for link in node.links if link.expected]
    return {
        "run": run,
        "judged": judged,
        "nodes": nodes,
        "gpudirect": sum(log.gpudirect_channels for log in logs) / channels if channels else None,
        "nccl": next((log.version for log in logs if log.version), None),
        "links_used": sum(map(bool, expected)),
        "links_expected": len(expected),
    }


def _rank(network: dict[str, Any]) -> int:
    """0 for the worst verdict."""
    return _VERDICTS.index(network["judged"].verdict)


def _links(nodes: list[NodeFabric]) -> Iterator[dict[str, Any]]:
    """Values of `_LINK_COLUMNS` of links with traffic, or that should have some; the busiest first."""
    for node in nodes:
        for link in sorted(node.links, key=lambda link: (-traffic(link), link.name)):
            total = sum(traffic(each) for each in node.links if each.kind == link.kind)
            rate, line = link.sent_bytes / link.seconds if link.seconds else None, link.line_rate_bytes_per_s
            if traffic(link) or link.expected:
                yield {
                    "node": node.host,
                    "of": link,
                    "share": traffic(link) / total if total else None,
                    "rate": rate,
                    "line_rate_share": rate / line if rate is not None and line else None,
                }
