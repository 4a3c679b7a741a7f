"""Targets: figures that the sweep file sets, the achieved ones, and whether they are met."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from analysis.report.common import sentence
from analysis.report.section import Column, RunLink, Section, Table, Unit
from analysis.results import targets
from analysis.results.targets import TargetResult
from analysis.study import Study
from analysis.units import plural
from disttrain.errors import ConfigError
from disttrain.records.planned import SHARES

ORDER = 10


def build(study: Study) -> Section | None:
    """One table for shares and one for throughput; None without targets."""
    try:
        found = targets.results(study.runs, study.curves)
    except ConfigError as error:
        return Section("targets", "Targets", f"The targets are unknown: {error}.")
    if not found:
        return None
    shares = [result for result in found if result.metric in SHARES]
    rates = [result for result in found if result.metric not in SHARES]
    tables = [_table(study, shares, "targets", "share")] if shares else []
    tables += [_table(study, rates, "targets_throughput", "samples/s")] if rates else []
    return Section("targets", "Targets", _conclusion(found), tables=tables)


def _conclusion(found: list[TargetResult]) -> str:
    """Number of targets by verdict; the missed ones by name."""
    counts = Counter(result.verdict for result in found)
    if counts["met"] == len(found):
        return "The target is met." if len(found) == 1 else f"All {len(found)} targets are met."
    missed = [result for result in found if result.verdict == "missed"]
    names = [f"{_name(result.metric)} at {result.at}" for result in missed]
    parts = [f"{counts['met']} of {plural(len(found), 'target')} met."]
    parts += [f"Missed: {', '.join(dict.fromkeys(names))}."] if missed else []
    parts += [f"Not settled by these runs: {counts['cannot tell']}."] if counts["cannot tell"] else []
    return sentence(parts)


def _table(study: Study, found: list[TargetResult], name: str, unit: Unit) -> Table:
    columns = [
        Column("curve", "configuration"),
        Column("size", "size"),
        Column("metric", "figure"),
        Column("bound", "bound"),
        Column("target", "target", unit),
        Column("achieved", "achieved", unit),
        Column("verdict", "verdict"),
        Column("reason", "reason"),
    ]
    rows = [
        [
            result.curve + (" (emulated)" if result.emulated else ""),
            result.at,
            _name(result.metric),
            "at most" if result.at_most else "at least",
            result.target,
            result.achieved,
            result.verdict,
            result.reason,
        ]
        for result in found
    ]
    return Table(
        name,
        "Targets of the sweep file. A target is met or missed if the whole interval is on one side of it.",
        columns,
        rows,
        [[RunLink(Path(path).name, path) for path in result.runs] for result in found],
        [index for index, result in enumerate(found) if result.verdict == "missed"],
    )


def _name(metric: str) -> str:
    return {
        "gpu_utilization": "GPU utilization",
        "mfu": "MFU",
        "communication_share": "exposed communication",
    }.get(metric, metric)
