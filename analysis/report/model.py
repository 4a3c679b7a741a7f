"""`report.json`: the content of a report as plain data, from which the page and the Markdown are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter

from analysis.comparison import repeat_plan
from analysis.report import first_screen
from analysis.report.definitions import DEFINITIONS
from analysis.report.headline import caveat_text, headline, without_curve
from analysis.report.run_records import none_if_missing, provenance, run_costs, training_quality
from analysis.report.section import RunLink, Section, Table, Value
from analysis.results.curves import Curve
from analysis.stats.estimates import CONFIDENCE, Estimate
from analysis.study import Study

SCHEMA_VERSION = 6
_RUN = (
    "sweep", "run", "emulated", "nodes", "ranks_per_node", "samples_per_s", "step_s", "step_p50_s",
    "step_p95_s", "step_p99_s", "measured_steps", "peak_memory_bytes",
)  # fmt: skip
"""Columns of a run that counts in the figures."""


def document(study: Study, sections: Sequence[Section], generated: str) -> dict[str, Any]:
    """The content of `report.json`; `generated` is the time of the report in UTC (ISO 8601).

    Caveats have no text where the headline says it. Cells of tables are raw values in the unit of their
    column; an estimate is an object with value, low, high, repeats and basis.
    """
    table, included, plan = study.runs, study.included, repeat_plan(study.curves)
    properties = provenance(included if len(included) else table)
    return {
        "schema_version": SCHEMA_VERSION,
        "title": "Scaling report: " + ", ".join(study.sweeps),
        "sweeps": study.sweeps,
        "generated": generated,
        "confidence": CONFIDENCE,
        "headline": [headline(study, curve) for curve in study.curves] or [without_curve(study)],
        "setting": first_screen.setting(study),
        "lead": first_screen.lead(study),
        "answers": [answer._asdict() for answer in first_screen.answers(study, sections)],
        "emulated": study.emulated,
        "caveats": [
            {
                "kind": caveat.kind,
                "gravity": caveat.gravity.name.lower(),
                "text": caveat_text(study, caveat),
                "runs": sorted(map(_name, caveat.runs)),
                "forbids": sorted(caveat.forbids),
            }
            for caveat in study.caveats
        ],
        "curves": TypeAdapter(list[Curve]).dump_python(list(study.curves), mode="json"),
        "repeat_plan": plan and asdict(plan),
        "training_quality": [
            row._asdict() for curve in study.curves for row in training_quality(curve, included)
        ],
        "figures": [
            {"file": f"{each.name}.png", "title": each.title, "alt": each.alt, "emulated": study.emulated}
            for section in sections
            for each in section.figures
        ],
        "sections": [_section(section) for section in sections],
        "definitions": [asdict(each) for each in DEFINITIONS.values()],
        "runs": _records(included, _RUN),
        "excluded_runs": [
            {"sweep": row["sweep"], "run": row["run"], "state": row["state"], "reason": row["note"]}
            for row in table[~table["included"]].to_dict("records")
        ],
        "run_costs": [row._asdict() for row in run_costs(table)],
        "overlaps": [
            {
                "run": _name(each.runs[0]),
                "other": _name(each.runs[1]),
                "hosts": each.hosts,
                "seconds": each.seconds,
                "gpus": each.gpus,
            }
            for each in study.overlaps
        ],
        "provenance": [{"name": name, "values": values} for name, values in properties.items()],
    }


def _name(run: Path | str) -> str:
    """`sweep/run` of a run directory."""
    return "/".join(Path(run).parts[-2:])


def _records(runs: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {name: none_if_missing(row[name]) for name in columns} for row in runs[[*columns]].to_dict("records")
    ]


def _section(section: Section) -> dict[str, Any]:
    return {
        "id": section.id,
        "title": section.title,
        "key": section.key,
        "conclusion": section.conclusion,
        "paragraphs": list(section.paragraphs),
        "code": section.code,
        "tables": [_table(each) for each in section.tables],
    }


def _table(table: Table) -> dict[str, Any]:
    columns = [
        {"name": each.name, "heading": each.heading, "unit": each.unit, "formula_id": each.formula_id}
        for each in table.columns
    ]
    rows = [[_raw(value) for value in row] for row in table.rows]
    sources = [[link.name for link in links] for links in table.sources]
    return {
        "name": table.name,
        "caption": table.caption,
        "columns": columns,
        "rows": rows,
        "sources": sources,
    }


def _raw(value: Value) -> Any:
    if isinstance(value, Estimate):
        return asdict(value)
    return value.name if isinstance(value, RunLink) else none_if_missing(value)
