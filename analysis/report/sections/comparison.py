"""Comparison with another sweep: which is faster, curve by curve, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis import comparison
from analysis.comparison import PointComparison
from analysis.read.differences import PARTS, Difference, Part, differences, unrecorded
from analysis.report import comparison_parts
from analysis.report.common import sources
from analysis.report.section import Column, Section, Table
from analysis.study import Study
from analysis.units import listed

ORDER = 30


def build(study: Study) -> Section | None:
    """Ratios of throughput, and differences in config, code and environment; None without another sweep."""
    other = study.against
    if other is None:
        return None
    name = _name(study, other)
    compared = comparison.against(study.curves, other.curves)
    if not compared:
        text = f"Nothing to compare with {name}: no finished runs of the same number of nodes and ranks."
        return Section("comparison", "Comparison", text)
    several = len({each.curve.label for each in compared}) > 1
    text = comparison_parts.conclusion(compared, lambda each: _point(each, several=several))
    alone = [
        *comparison.unmatched(study.curves, compared),
        *(f"{label} of {name}" for label in comparison.unmatched(other.curves, compared)),
    ]
    paragraphs = [comparison_parts.verdict_text(compared)]
    paragraphs += [f"Compared with nothing: {', '.join(alone)}."] if alone else []
    runs, base_runs = _runs(study, other, compared)
    found = differences(runs, base_runs)
    paragraphs += [_difference_text(found, name, unrecorded(runs), unrecorded(base_runs))]
    figure = comparison_parts.figure("comparison", "Ratio of throughputs", compared)
    rows = comparison_parts.table(
        "comparison",
        f"Throughput against {name} at equal numbers of nodes and ranks.",
        compared,
        lambda each: [
            *sources(study, each.curve, each.point),
            *sources(other, each.base_curve, each.base),
        ],
    )
    tables = [rows, *([_difference_table(found, name)] if found else [])]
    figures = [figure] if figure else []
    return Section("comparison", "Comparison", f"Against {name}: {text}.", paragraphs, tables, figures)


def _point(each: PointComparison, *, several: bool) -> str:
    size = each.curve.name(each.point)
    return f"{each.curve.label}, {size}" if several else size


def _name(study: Study, other: Study) -> str:
    """Names of the other sweeps; their folders where a name is also that of a sweep of the study."""
    if not set(study.sweeps) & set(other.sweeps):
        return ", ".join(other.sweeps)
    return ", ".join(sorted({str(Path(path).parent) for path in other.runs["path"]}))


Rows = list[dict[str, Any]]


def _runs(study: Study, other: Study, compared: Sequence[PointComparison]) -> tuple[Rows, Rows]:
    """Runs of the compared points, of the study and of the other one."""
    ours: dict[str, dict[str, Any]] = {}
    theirs: dict[str, dict[str, Any]] = {}
    for each in compared:
        ours |= {row["path"]: row for row in study.runs_of(each.curve, each.point)}
        theirs |= {row["path"]: row for row in other.runs_of(each.base_curve, each.base)}
    return list(ours.values()), list(theirs.values())


def _difference_text(
    found: Sequence[Difference], name: str, absent: Sequence[Part], base_absent: Sequence[Part]
) -> str:
    """Differences, and the parts that one side does not record (`absent` here, `base_absent` there)."""
    sides = [(listed(absent), "here"), (listed(base_absent), f"of {name}")]
    gaps = [f"{parts} {side}" for parts, side in sides if parts]
    gap = f" Not recorded: {'; '.join(gaps)}." if gaps else ""
    if not found:
        compared = [part for part in PARTS if part not in {*absent, *base_absent}]
        if not compared:
            return f"Whether config, code and environment differ from {name} is unknown.{gap}"
        return f"No difference from {name} is recorded in {listed(compared)}.{gap}"
    if len(found) == 1:
        each = found[0]
        text = f"One recorded difference from {name}: {each.name} is {each.value} here and {each.base} there."
        return text + gap
    return (
        f"{len(found)} recorded differences from {name}, listed below: this comparison does not separate "
        f"their effects.{gap}"
    )


def _difference_table(found: Sequence[Difference], name: str) -> Table:
    columns = [
        Column("part", "part"),
        Column("name", "property"),
        Column("value", "here"),
        Column("base", f"in {name}"),
    ]
    rows = [[each.part, each.name, each.value, each.base] for each in found]
    return Table("differences", f"Recorded differences from {name}.", columns, rows)
