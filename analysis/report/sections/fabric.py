"""The network that runs used: NCCL's own log, links with traffic, and the verdict on both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from analysis.efficiency import Curve, Point
from analysis.report.common import all_points, point_name, sentence, size_columns, size_values, sources
from analysis.report.section import Column, RunLink, Section, Table, Value
from analysis.study import Study
from disttrain.records.fabric import FabricRecord, FabricVerdict, LinkTraffic, NodeFabric
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir

MOST_LINKS = 64
"""Rows of the table of links."""
_LOOPBACK = "gloo over lo"
"""Transport of nodes that are one machine: no network is used."""
_VERDICTS = {"problems": "problems", "unproven": "unproven", "as_expected": "as expected"}
"""Texts by verdict, worst first."""


class _Row(NamedTuple):
    """A point, and its repeat with the worst verdict."""

    curve: Curve
    point: Point
    run: str
    verdict: FabricVerdict


def build(study: Study) -> Section | None:
    """None if no run used a network, or none was recorded."""
    rows = [found for curve, point in all_points(study) if (found := _worst(study, curve, point))]
    if not rows:
        return None
    row = _decisive(rows)
    where = point_name(study, row.curve, row.point)
    conclusion = f"On {where}: {row.verdict.conclusion}"
    tables = [_verdicts(study, rows)]
    if (record := _record(study, row)) is not None and (
        links := _links(where, record, _link(study, row))
    ) is not None:
        tables.append(links)
    return Section("fabric", "Network", conclusion, paragraphs=_paragraphs(study, rows), tables=tables)


def _worst(study: Study, curve: Curve, point: Point) -> _Row | None:
    """The repeat of a point with the worst verdict, the first of several."""
    found = [
        _Row(curve, point, run, metrics.fabric)
        for run in point.runs
        if (metrics := study.metrics.get((curve.sweep, run)))
        and metrics.fabric is not None
        and metrics.fabric.transport != _LOOPBACK
    ]
    return min(found, key=lambda row: [*_VERDICTS].index(row.verdict.verdict), default=None)


def _decisive(rows: Sequence[_Row]) -> _Row:
    """The largest of the points with the worst verdict that has evidence."""
    for name in ("problems", "as_expected", "unproven"):
        if chosen := [each for each in rows if each.verdict.verdict == name]:
            return max(chosen, key=lambda each: each.point.size)
    raise AssertionError("a verdict of another name")


def _paragraphs(study: Study, rows: Sequence[_Row]) -> list[str]:
    """How to read the section, and each finding once, with the sizes that have it."""
    backends = {
        str(metrics.backend)
        for row in rows
        for run in row.point.runs
        if (metrics := study.metrics.get((row.curve.sweep, run)))
    }
    logless = "gloo" in backends and not any("gloo has no log" in row.verdict.conclusion for row in rows)
    text = sentence(
        [
            "Verdicts compare NCCL's own log of the first steps with the adapters of the nodes."
            if "nccl" in backends
            else "",
            "gloo has no log: its verdicts are about network interfaces." if logless else "",
            "Counters of the kernel show the bytes of each link in measured steps, whatever sent them.",
        ]
    )
    found: dict[str, list[str]] = {}
    for row in rows:
        for finding in row.verdict.findings:
            found.setdefault(finding.message, []).append(point_name(study, row.curve, row.point))
    return [text, *(f"{message} ({', '.join(dict.fromkeys(names))})." for message, names in found.items())]


def _verdicts(study: Study, rows: Sequence[_Row]) -> Table:
    lines: list[list[Value]] = []
    for row in rows:
        record = _record(study, row)
        nodes = record.nodes if record else []
        logs = [node.nccl for node in nodes if node.nccl is not None]
        channels = sum(log.network_channels for log in logs)
        direct = sum(log.gpudirect_channels for log in logs)
        expected = [link.name for node in nodes for link in node.links if link.expected]
        used = [link.name for node in nodes for link in node.links if link.expected and _bytes(link)]
        lines.append(
            [
                *size_values(study, row.curve, row.point),
                _VERDICTS[row.verdict.verdict],
                row.verdict.transport,
                direct / channels if channels else None,
                next((log.version for log in logs if log.version), None),
                len(used) if nodes else None,
                len(expected) if nodes else None,
            ]
        )
    columns = [
        *size_columns(study),
        Column("verdict", "verdict"),
        Column("transport", "transport"),
        Column("gpudirect", "channels with GPUDirect", "share"),
        Column("nccl", "NCCL"),
        Column("links_used", "expected interfaces with traffic", "count"),
        Column("links_expected", "expected interfaces", "count"),
    ]
    several = any(len(row.point.runs) > 1 for row in rows)
    worst = "Each row is of the repeat with the worst verdict; links" if several else "Links"
    caption = f"{worst} are those of all nodes."
    links = [sources(study, row.curve, row.point) for row in rows]
    return Table("fabric", caption, columns, lines, links)


def _links(where: str, record: FabricRecord, run: RunLink) -> Table | None:
    """Traffic of each link of a run, busiest first within a node; None without traffic."""
    rows = [row for node in record.nodes for row in _rows(node)]
    if not rows:
        return None
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
    hidden = len(rows) - MOST_LINKS
    more = f" {hidden} more links are in `fabric.json`." if hidden > 0 else ""
    caption = (
        f"Traffic of links in measured steps on {where}, between samples of the counters, headers of the "
        f"protocols included; the time before the first and after the last sample does not count.{more}"
    )
    shown = rows[:MOST_LINKS]
    return Table("fabric_links", caption, columns, shown, [[run]] * len(shown))


def _rows(node: NodeFabric) -> Iterator[list[Value]]:
    totals: dict[str, int] = {}
    for link in node.links:
        totals[link.kind] = totals.get(link.kind, 0) + _bytes(link)
    for link in sorted(node.links, key=lambda each: (-_bytes(each), each.name)):
        if not (_bytes(link) or link.expected):
            continue
        rate = link.sent_bytes / link.seconds if link.seconds else None
        line = link.line_rate_bytes_per_s
        yield [
            node.host,
            link.name,
            link.kind,
            "yes" if link.expected else "no",
            link.sent_bytes,
            link.received_bytes,
            _bytes(link) / totals[link.kind] if totals[link.kind] else None,
            rate,
            rate / line if rate is not None and line else None,
        ]


def _bytes(link: LinkTraffic) -> int:
    return link.sent_bytes + link.received_bytes


def _link(study: Study, row: _Row) -> RunLink:
    """The repeat of a row."""
    (link,) = [link for link in sources(study, row.curve, row.point) if link.name == row.run]
    return link


def _record(study: Study, row: _Row) -> FabricRecord | None:
    """`fabric.json` of the repeat of a row; None without one."""
    path = _link(study, row).path
    attempt = study.metrics[row.curve.sweep, row.run].attempt
    content = read_json_or_none(RunDir(Path(path)).attempt(attempt).fabric)
    try:
        return FabricRecord.model_validate(content)
    except ValidationError:  # also of no file
        return None
