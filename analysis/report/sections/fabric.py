"""The network that runs used: NCCL's own log, links with traffic, and the verdict on both."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ValidationError

from analysis.report import common
from analysis.report.section import Column, RunLink, Section, Table, Value
from analysis.results.curves import Curve, Point
from analysis.study import Study
from disttrain.records.fabric import FabricRecord, FabricVerdict, LinkTraffic, NodeFabric
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir

ORDER = 150

MOST_LINKS = 64
"""Rows of the table of links, busiest first within a node; the rest is in the run's fabric.json."""
_LOOPBACK = "gloo over lo"
"""Transport of nodes that are one machine: no network is used."""
_VERDICTS = {"problems": "problems", "unproven": "unproven", "as_expected": "as expected"}
"""Texts by verdict, worst first."""
_EVIDENT = ("problems", "as_expected", "unproven")
"""Verdicts in the order in which they decide: the worst with evidence first."""


class _Network(NamedTuple):
    """Of one point, the repeat with the worst verdict."""

    curve: Curve
    point: Point
    run: RunLink
    verdict: FabricVerdict
    nodes: list[NodeFabric]
    """Of `fabric.json`; empty without one."""

    @property
    def links(self) -> list[tuple[NodeFabric, LinkTraffic]]:
        """Links of all nodes with traffic, or that should have some."""
        links = [(node, link) for node in self.nodes for link in node.links]
        return [(node, link) for node, link in links if _bytes(link) or link.expected]


def build(study: Study) -> Section | None:
    """None if no run used a network, or none was recorded."""
    networks = [
        network for curve, point in common.all_points(study) if (network := _worst(study, curve, point))
    ]
    if not networks:
        return None
    shown = min(networks, key=lambda each: (_EVIDENT.index(each.verdict.verdict), -each.point.size))
    findings: dict[str, list[str]] = {}
    for each in networks:
        for finding in each.verdict.findings:
            findings.setdefault(finding.message, []).append(common.point_name(study, each.curve, each.point))
    where = common.point_name(study, shown.curve, shown.point)
    return Section(
        "fabric",
        "Network",
        f"On {where}: {shown.verdict.conclusion}",
        paragraphs=[f"{text} ({', '.join(dict.fromkeys(names))})." for text, names in findings.items()],
        tables=[_verdicts(study, networks), *([_links(where, shown)] if shown.links else [])],
    )


def _worst(study: Study, curve: Curve, point: Point) -> _Network | None:
    """The repeat of a point with the worst verdict, the first of several."""
    networks = []
    for run, metrics in zip(point.runs, point.metrics, strict=True):
        if (verdict := metrics.fabric) is not None and verdict.transport != _LOOPBACK:
            nodes = _nodes(run.folder, metrics.attempt)
            networks.append(_Network(curve, point, RunLink(run.name, run.path), verdict, nodes))
    return min(networks, key=lambda each: [*_VERDICTS].index(each.verdict.verdict), default=None)


def _nodes(run: RunDir, attempt: int) -> list[NodeFabric]:
    try:
        return FabricRecord.model_validate(read_json_or_none(run.attempt(attempt).fabric)).nodes
    except ValidationError:  # also of no file
        return []


def _verdicts(study: Study, networks: list[_Network]) -> Table:
    rows: list[tuple[Curve, Point, list[Value]]] = []
    for each in networks:
        logs = [node.nccl for node in each.nodes if node.nccl is not None]
        channels = sum(log.network_channels for log in logs)
        expected = [link for _, link in each.links if link.expected]
        values: list[Value] = [
            _VERDICTS[each.verdict.verdict],
            each.verdict.transport,
            sum(log.gpudirect_channels for log in logs) / channels if channels else None,
            next((log.version for log in logs if log.version), None),
            sum(map(bool, map(_bytes, expected))) if each.nodes else None,
            len(expected) if each.nodes else None,
        ]
        rows.append((each.curve, each.point, values))
    columns = [
        Column("verdict", "verdict"),
        Column("transport", "transport"),
        Column("gpudirect", "channels with GPUDirect", "share"),
        Column("nccl", "NCCL"),
        Column("links_used", "expected interfaces with traffic", "count"),
        Column("links_expected", "expected interfaces", "count"),
    ]
    return common.size_table(study, "fabric", "Network of the repeat with the worst verdict.", columns, rows)


def _links(where: str, shown: _Network) -> Table:
    """Traffic of each link of a run, busiest first within a node."""
    rows: list[list[Value]] = []
    order = {node.host: at for at, node in enumerate(shown.nodes)}
    for node, link in sorted(shown.links, key=lambda at: (order[at[0].host], -_bytes(at[1]), at[1].name)):
        total = sum(_bytes(other) for other in node.links if other.kind == link.kind)
        rate, line = link.sent_bytes / link.seconds if link.seconds else None, link.line_rate_bytes_per_s
        rows.append(
            [
                node.host,
                link.name,
                link.kind,
                link.expected,
                link.sent_bytes,
                link.received_bytes,
                _bytes(link) / total if total else None,
                rate,
                rate / line if rate is not None and line else None,
            ]
        )
    columns = [
        Column("node", "node"),
        Column("link", "link"),
        Column("kind", "kind"),
        Column("expected", "expected"),
        Column("sent", "sent", "B"),
        Column("received", "received", "B"),
        Column("share", "share of the node's bytes", "share", "link-share"),
        Column("rate", "mean rate sent", "B/s"),
        Column("line_rate_share", "share of the line rate", "share"),
    ]
    caption = f"Traffic of links in measured steps on {where}, headers of the protocols included."
    return Table("fabric_links", caption, columns, rows[:MOST_LINKS], [[shown.run]] * len(rows[:MOST_LINKS]))


def _bytes(link: LinkTraffic) -> int:
    return link.sent_bytes + link.received_bytes
