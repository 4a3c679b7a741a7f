"""Communication in the steps, the network that runs used, and communication benchmarks (`bench comm`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from analysis.draw.style import size_axis
from analysis.read.record import read_record
from analysis.read.run import Run
from analysis.report.common import (
    Column,
    Figure,
    Section,
    Study,
    Table,
    bars_figure,
    item_table,
    leading,
    metric,
    over_repeats,
    place_of,
    places,
    points_figure,
    say,
    size_table,
    step_figure,
)
from analysis.report.tables import table_view
from analysis.results import communication as measured
from analysis.results.curves import Point, phase_s
from analysis.results.network import judge, traffic
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate
from analysis.units import binary_bytes, percent
from disttrain.records.comm_bench import CollectiveTiming, CommBench, StepTiming, Timing
from disttrain.records.communication import CollectiveSummary, FabricRecord, NodeFabric
from disttrain.records.json_files import CorruptFile, read_json

_LISTED = 8
"""Collectives listed for each size, longest first; the rest is in the runs' metrics.json."""
_EXPOSED, _HIDDEN, _BUS = "exposed-communication", "hidden-communication", "bus-bandwidth"
_COMMUNICATION = (
    Column("share", "share of step", "share", "communication-share", get=measured.exposed_share),
    Column("wait_s", "waiting for peers", "s", _EXPOSED, get=phase_s(WAIT), colour="wait"),
    Column("transfer_s", "data transfer", "s", _EXPOSED, get=phase_s(TRANSFER), colour="c1"),
    Column("hidden_s", "hidden", "s", _HIDDEN, get=metric("comm.hidden_s"), colour="hidden"),
    Column("bytes", "payload per rank", "B", get=metric("comm.bytes")),
    Column("bus_bytes_per_s", "bus bandwidth", "B/s", _BUS, get=measured.mean_bus_rate),
    Column("line_share", "of line rate", "share", "line-share", get=measured.line_share),
    Column("measured_share", "of measured rate", "share", "measured-share", get=measured.measured_share),
)
_COLLECTIVES = (
    Column("collective"),
    Column("bytes", "bytes", "B"),
    Column("total_s", "duration", "s"),
    Column("hidden_s", "hidden", "s", _HIDDEN),
    Column("exposed_s", "exposed", "s", _EXPOSED),
    Column("bus_bytes_per_s", "bus bandwidth", "B/s", _BUS),
)


def communication(study: Study) -> Section | None:
    """None if no run communicates."""
    items = [(place, place.point) for place in places(study) if place.point.world_size > 1]
    if not items:
        return None
    collectives = [(place, each) for place, point in items for each in _collectives(point)]
    caption = f"Collectives of profiled steps, the {_LISTED} longest of each size."
    listed = size_table(study, "collectives", caption, _COLLECTIVES, collectives)
    caption = "Communication of a step, means over ranks and repeats."
    table = size_table(study, "communication", caption, _COMMUNICATION, items)
    place, point = leading(study), leading(study).point
    share = measured.exposed_share(point)
    unlike = [(measured.unlike_the_mean(at.point), at.name) for at in places(study)]
    numbers = (
        point.phases,
        measured.hidden_share(point),
        [steps.count for steps in measured.profiled(point)],
        max((at for at in unlike if at[0]), default=None),
    )
    longest = [*takewhile(_is_longest, reversed(study.leading_curve.line))]
    return Section(
        "communication",
        "Communication",
        say("communication", place.name, share, *numbers),
        key=percent(share.value) if share else "",
        paragraphs=[say("communication_longest", place_of(study, longest[-1]).name) if longest else ""],
        tables=[table, listed],
        figures=[
            *bars_figure(study, table, "Communication", "communication in a step"),
            *step_figure(
                study,
                "communication_ratio",
                "Communication / compute on rank 0",
                [Column("ratio", "communication / compute", "number")],
                lambda run: run.curves["communication_computation_history"],
            ),
        ],
    )


def _collectives(point: Point) -> list[dict[str, Any]]:
    """Values of `_COLLECTIVES`, the longest collectives first."""
    by_name: dict[str, list[CollectiveSummary]] = {}
    for one in (one for steps in measured.profiled(point) for one in steps.collectives):
        group = "" if one.dimension == "world" else f" ({one.dimension})"
        by_name.setdefault(f"{one.kind} {one.bucket}{group}", []).append(one)
    longest = sorted(by_name.items(), key=lambda item: -fmean(one.total_s for one in item[1]))
    means = [column.name for column in _COLLECTIVES[2:]]
    return [
        {"collective": name, "bytes": repeats[0].bytes}
        | {field: over_repeats(point, [getattr(one, field) for one in repeats]) for field in means}
        for name, repeats in longest[:_LISTED]
    ]


def _is_longest(point: Point) -> bool:
    """Whether communication takes longer than each other phase."""
    seconds = {name: value or 0.0 for name, value in point.composition.items()}
    return seconds.pop(WAIT) + seconds.pop(TRANSFER) > max(seconds.values())


MOST_LINKS = 64
"""Rows of the table of links, busiest first within a node; the rest is in the run's fabric.json."""
_LOOPBACK = "gloo over lo"
"""Transport of nodes that are one machine: no network is used."""
_VERDICTS = ("problems", "unproven", "as_expected")
"""Worst first."""
_NETWORK = (
    Column("verdict", get=lambda network: network["judged"].verdict.replace("_", " ")),
    Column("transport", get="judged.transport"),
    Column("gpudirect", "channels with GPUDirect", "share"),
    Column("nccl", "NCCL"),
    Column("links_used", "expected interfaces with traffic", "count"),
    Column("links_expected", "expected interfaces", "count"),
)
_LINKS = (
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


def fabric(study: Study) -> Section | None:
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
            size_table(study, "fabric", "Network of the repeat with the worst verdict.", _NETWORK, items),
            item_table("fabric_links", caption, _LINKS, links, sources=sources),
        ],
    )


def _network(run: Run) -> dict[str, Any] | None:
    """Values of `_NETWORK`, with the run, its nodes and the verdict; None without a network, and without
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
    """Values of `_LINKS` of links with traffic, or that should have some; the busiest first."""
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


_TIMINGS = (
    Column("collective", get=lambda each: _name(each)),
    Column("bytes", "size", "B", key=True),
    Column("latency_s", "latency", "s", get=lambda each: _estimate(each.time)),
    Column("bus_bytes_per_s", "bus bandwidth", "B/s", "bus-bandwidth"),
)
_STEPS = (
    Column("name", "form"),
    Column("options"),
    Column("step_s", "step", "s"),
    Column("exposed_s", "exposed", "s"),
    Column("bytes", "sent", "B"),
    Column("ratio", "speed-up", "ratio"),
    Column("bytes_per_s", "gradients / exposed", "B/s"),
)


def comm_bench(study: Study) -> Section | None:
    """None without the result of a benchmark."""
    results: dict[str, CommBench] = {}
    for run in study.runs:
        with suppress(FileNotFoundError, CorruptFile, ValidationError):
            results[run.name] = CommBench.model_validate(read_json(run.folder.comm_bench))
    if not results:
        return None
    figures = [_figure(study, results)]
    return Section("comm-bench", "Communication benchmark", tables=_tables(results), figures=figures)


def printed(results: Mapping[str, CommBench]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Caption, headings and texts of the tables, for a terminal."""
    return [
        (
            view.words,
            [column.heading for column in view.columns],
            [[cell.line for _, cell in row] for row in view.rows],
        )
        for view in map(table_view, _tables(results))
    ]


def _tables(results: Mapping[str, CommBench]) -> list[Table]:
    """The collectives and the steps of each run."""
    return [
        item_table(f"comm_bench_{kind}_{at}", say(f"comm_{kind}", run, result), columns, items)
        for at, (run, result) in enumerate(results.items())
        for kind, columns, items in (
            ("collectives", _TIMINGS, result.collectives),
            ("steps", _STEPS, [_step(result, step) for step in result.steps]),
        )
    ]


def _step(result: CommBench, step: StepTiming) -> dict[str, Any]:
    """Values of `_STEPS`."""

    def median(value: float | None, low: float | None, high: float | None) -> Estimate | None:
        return None if value is None else Estimate(value, low, high, result.compute.repeats)

    exposed = median(step.exposed_s, step.exposed_low_s, step.exposed_high_s)
    divides = exposed and exposed.low and exposed.low > 0  # unlike a time whose interval includes 0
    return {
        **vars(step),
        "step_s": step.step and _estimate(step.step),
        "exposed_s": exposed,
        "ratio": median(step.speed_up, step.speed_up_low, step.speed_up_high),
        "bytes_per_s": result.gradient_bytes / exposed.value if exposed and divides else None,
    }


def _name(timed: CollectiveTiming) -> str:
    return timed.kind.replace("_", "-")


def _estimate(time: Timing) -> Estimate:
    return Estimate(time.median_s, time.low_s, time.high_s, time.repeats)


def _figure(study: Study, results: Mapping[str, CommBench]) -> Figure:
    """Bus bandwidth by size of the message, a line for each collective of a run."""
    rows = [
        (
            f"{run} {_name(each)}",
            binary_bytes(each.bytes),
            float(each.bytes),
            _estimate(each.time).inverse(each.bus_bytes_per_s * each.time.median_s),
        )
        for run, result in results.items()
        for each in result.collectives
    ]
    x = size_axis("message", [size for _, _, size, _ in rows])
    x = x._replace(form=lambda size, _: binary_bytes(size))
    title, data = "Bus bandwidth by size of the message", "comm_bench_collectives_0"
    return points_figure(study, "comm_bench", title, rows, "B/s", x, "bus bandwidth", data, log=True)


SECTIONS = {90: communication, 150: fabric, 6: comm_bench}
