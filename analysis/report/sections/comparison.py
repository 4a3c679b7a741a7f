"""Comparison with another sweep: which is faster, curve by curve, and what differs."""

from __future__ import annotations

from collections.abc import Sequence

from analysis import comparison
from analysis.read.differences import PARTS, Difference, differences, unrecorded
from analysis.report import comparison_parts
from analysis.report.section import Column, Section, Table
from analysis.report.sentences import say
from analysis.study import Study

ORDER = 30


def build(study: Study) -> Section | None:
    """Ratios of throughput, and differences in config, code and environment; None without another sweep."""
    other = study.against
    if other is None:
        return None
    here, there = _names(study, other)
    compared = comparison.against(study.curves, other.curves)
    if not compared:
        return Section("comparison", "Comparison", say("nothing_compared", there))
    alone = [_side(label, study, here) for label in comparison.unmatched(study.curves, compared)]
    alone += [_side(label, other, there) for label in comparison.unmatched(other.curves, compared)]
    runs = [*dict.fromkeys(run for each in compared for run in each.point.runs)]
    base_runs = [*dict.fromkeys(run for each in compared for run in each.base.runs)]
    found = differences(runs, base_runs)
    absent = {here: unrecorded(runs), there: unrecorded(base_runs)}
    known = [part for part in PARTS if not any(part in parts for parts in absent.values())]
    return comparison_parts.section(
        "comparison",
        "Comparison",
        study,
        compared,
        sides=lambda each: (
            _side(each.curve.label, study, here),
            _side(each.base_curve.label, other, there),
        ),
        paragraphs=[say("compared_records", found, known, absent, here, there), say("unmatched", alone)],
        tables=[_difference_table(found, here, there)] if found else [],
    )


def _side(label: str, study: Study, name: str) -> str:
    """Name of a curve with that of its sweep."""
    return name if label in study.sweeps else f"{label} of {name}"


def _names(study: Study, other: Study) -> tuple[str, str]:
    """Names of the sweeps of both sides; their folders where a name is on both."""
    if not set(study.sweeps) & set(other.sweeps):
        return ", ".join(study.sweeps), ", ".join(other.sweeps)
    here, there = (sorted({str(run.folder.path.parent) for run in each.runs}) for each in (study, other))
    return ", ".join(here), ", ".join(there)


def _difference_table(found: Sequence[Difference], here: str, there: str) -> Table:
    columns = [
        Column("part", "part"),
        Column("name", "property"),
        Column("value", here),
        Column("base", there),
    ]
    rows = [[each.part, each.name, each.value, each.base] for each in found]
    return Table("differences", f"Recorded differences from {there}.", columns, rows)
