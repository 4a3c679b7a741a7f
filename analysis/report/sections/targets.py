"""Targets: figures that the sweep file sets, the achieved ones, and whether they are met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analysis.report.common import Column, Section, Study, Table, Unit, item_table, say
from analysis.results.targets import TargetResult, results
from disttrain.errors import ConfigError
from disttrain.records.planned import SHARES

_NAMES = {"gpu_utilization": "GPU utilization", "mfu": "MFU", "communication_share": "exposed communication"}


def targets(study: Study) -> Section | None:
    """One table for shares and one for throughput; None without targets."""
    try:
        found = results(study.runs, study.curves)
    except ConfigError as error:
        return Section("targets", "Targets", f"The targets are unknown: {error}.")
    if not found:
        return None
    shares = [result for result in found if result.metric in SHARES]
    rates = [result for result in found if result.metric not in SHARES]
    counts = Counter(result.verdict for result in found)
    missed = [f"{_name(result)} at {result.at}" for result in found if result.verdict == "missed"]
    return Section(
        "targets",
        "Targets",
        say("targets", len(found), counts, [*dict.fromkeys(missed)]),
        tables=[
            _table(study, "targets", "share", shares),
            _table(study, "targets_throughput", "samples/s", rates),
        ],
    )


def sentence(result: TargetResult) -> str:
    """`missed: efficiency at 8 GPUs is 0.612 [0.580 to 0.646], target at least 0.850`; ASCII,
    for terminals of any encoding."""
    return say("target", result, "" if result.metric in SHARES else " samples/s")


def _table(study: Study, name: str, unit: Unit, found: Sequence[TargetResult]) -> Table:
    columns = [
        Column("curve", "configuration", get=lambda it: it.curve + (" (emulated)" if it.emulated else "")),
        Column("size", get="at"),
        Column("metric", "figure", get=_name),
        Column("bound", get=lambda each: "at most" if each.at_most else "at least"),
        Column("target", "target", unit),
        Column("achieved", "achieved", unit),
        Column("verdict"),
        Column("reason"),
    ]
    return item_table(
        name,
        "Targets of the sweep file. A target is met or missed if the whole interval is on one side of it.",
        columns,
        found,
        sources=[[run for run in study.runs if run.path in result.runs] for result in found],
        emphasized=[index for index, result in enumerate(found) if result.verdict == "missed"],
    )


def _name(result: TargetResult) -> str:
    return _NAMES.get(result.metric, result.metric)


SECTIONS = {10: targets}
