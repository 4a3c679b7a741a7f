"""Reproduction: commands, environment and hashes of the runs."""

from __future__ import annotations

from analysis.report import method_text
from analysis.report.run_records import provenance
from analysis.report.section import Column, Section, Table
from analysis.study import Study


def build(study: Study) -> Section | None:
    """None without a run."""
    if study.runs.empty:
        return None
    items = provenance(study.included if len(study.included) else study.runs)
    table = Table(
        "provenance",
        "Properties of the runs, with all their values.",
        [Column("property", "property"), Column("value", "value")],
        [[item.name, "; ".join(item.values)] for item in items],
    )
    commands = next((item.values for item in items if item.name == "Command"), [])
    conclusion = f"{len(commands)} commands made these runs." if len(commands) > 1 else ""
    paragraphs = method_text.method(study.runs) if study.curves else []
    return Section("reproduction", "Reproduction", conclusion, paragraphs=paragraphs, tables=[table])
