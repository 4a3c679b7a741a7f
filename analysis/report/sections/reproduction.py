"""Reproduction: commands, environment and hashes of the runs."""

from __future__ import annotations

from analysis.report.run_records import provenance
from analysis.report.section import Column, Section, Table
from analysis.study import Study

ORDER = 230


def build(study: Study) -> Section | None:
    """None without a run."""
    if not study.runs:
        return None
    properties = provenance(study.included or study.runs)
    columns = [Column("property", "property"), Column("value", "value")]
    rows = [[name, "; ".join(values)] for name, values in properties.items()]
    return Section(
        "reproduction", "Reproduction", "", tables=[Table("provenance", "Properties.", columns, rows)]
    )
