"""Sections of the page of results on gradient communication: of one machine, and of clusters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from benchmarks import quoted
from benchmarks.comm_bench import largest_messages
from benchmarks.results_text import NONE, Records, command_lines, prose, records_of
from disttrain.records.comm_bench import CommBench
from docs.generate.files import table

_COMMUNICATION = """
Two nodes of two ranks in network namespaces of one machine, with a link of the rate in the command; a step of
8 layers 512 x 512 in float32. Bytes are counted at the interface of one node, in one direction. The quoted
times are those of the exchange alone; ours are whole steps.
"""
_CLUSTERS = """
`python submit.py bench comm --nodes 2 4 --wait`, then `python -m benchmarks.comm_bench RUN --link-mbit N
--save LABEL` ([communication benchmark](communication-bench.md)).
"""


def communication(records: Records) -> list[str]:
    head = [
        "form",
        "mark",
        "ms a step",
        "MB on the link",
        "speed-up",
        "quoted GB/s",
        "quoted ms",
        "quoted speed-up",
    ]
    alike = {"none": "baseline", "topk": "topk", "hierarchical": "hierarchical"}
    rows = []
    for record in records_of(records, "gradient_communication#gradient-communication"):
        for name, row in record["figures"]["schemes"].items():
            theirs = quoted.COMMUNICATION.get(alike.get(name, ""))
            ours = [f"{row['step_ms']:.0f}", f"{row['link_mb']:.2f}", f"{row['speed_up']:.2f}x"]
            rows.append([name, "**CPU**", *ours, *_quoted_form(theirs)])
    bucketing = quoted.COMMUNICATION["large buckets"]
    rows.append([bucketing.form, *[NONE] * 4, *_quoted_form(bucketing)])
    return [
        "## Gradient communication\n",
        table(head, rows),
        prose(_COMMUNICATION),
        *command_lines(records, "gradient_communication#gradient-communication"),
    ]


def clusters(records: Records) -> list[str]:
    """The communication benchmark of clusters, one table for each saved run."""
    parts = ["## Communication benchmark\n"]
    head = ["form", "mark", "exposed ms", "GB/s", "speed-up of the step", "95 %", "quoted GB/s", "quoted ms"]
    head.append("quoted speed-up")
    for key in (key for key in records if key.startswith("comm_bench#")):
        found, result = records[key]["figures"], records[key]["raw"]["result"]
        mark = "**CPU**" if result["device"] == "cpu" else "**GPU**"
        rows = []
        for name, row in found["steps"].items():
            low, high = row["speed_up_95"]
            seconds = row["exposed_ms"] / 1e3
            rate = f"{found['gradient_bytes'] / seconds / 1e9:.3g}" if seconds else NONE
            interval = NONE if low is None else f"{low:.2f} to {high:.2f}"
            theirs = _quoted_form(quoted.COMMUNICATION.get(name.replace("-", " ")))
            rows.append(
                [name, mark, f"{row['exposed_ms']:.1f}", rate, f"{row['speed_up']:.2f}x", interval, *theirs]
            )
        parts += [table(head, rows), prose(_cluster_text(found, result)), *command_lines(records, key)]
    if len(parts) == 1:
        parts.append(prose("No result is saved yet."))
    return [*parts, prose(_CLUSTERS)]


def _cluster_text(found: dict[str, Any], result: dict[str, Any]) -> str:
    link = f"links of {found['link_mbit']:g} Mbit/s" if found["link_mbit"] else "links of unknown rate"
    alone = ", all on one machine" if result["one_machine"] else ""
    rates = ", ".join(
        f"{each.kind.replace('_', '-')} {each.bus_bytes_per_s / 1e6:.3g} MB/s at {each.bytes / 2**20:g} MiB"
        for each in largest_messages(CommBench.model_validate(result))
    )
    return (
        f"{result['nodes']} nodes x {result['ranks_per_node']} ranks{alone}, {link}, {result['backend']}, "
        f"gradients of {found['gradient_bytes'] / 1e6:.1f} MB. Bus bandwidth of the largest message: "
        f"{rates}. GB/s: gradient bytes per second of exposed time."
    )


def _quoted_form(theirs: SimpleNamespace | None) -> list[str]:
    if theirs is None:
        return [NONE] * 3
    return [f"{theirs.gb_per_s:g}", f"{theirs.latency_ms:g}", f"{theirs.speed_up:g}x"]
