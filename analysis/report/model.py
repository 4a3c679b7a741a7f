"""`report.json`: the content of a report as plain data, from which the page and the Markdown are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import yaml

from analysis.comparison import repeat_plan
from analysis.read.run import Run
from analysis.report import first_screen
from analysis.report.section import Section
from analysis.stats.estimates import CONFIDENCE
from analysis.study import Study

SCHEMA_VERSION = 7
_LEFT_OUT = ("figures", "get", "colour", "emphasized", "places")
"""Fields of sections and columns that are no data."""
_YAML = files("analysis.report").joinpath("templates", "definitions.yaml").read_text(encoding="utf-8")
DEFINITIONS: list[dict[str, str]] = [
    dict(zip(("id", "name", "formula", "text"), (id, *parts), strict=True))
    for id, parts in yaml.safe_load(_YAML).items()
]
"""Definitions of metrics, in the order of the page of details, where columns link to them."""


def document(study: Study, sections: Sequence[Section], generated: str) -> dict[str, Any]:
    """The content of `report.json`; `generated` is the time of the report in UTC (ISO 8601).

    Caveats have no text where the headline says it. Cells of tables are raw values in the unit of their
    column; an estimate is an object with value, low, high, repeats and basis.
    """
    lead = first_screen.lead(study)
    return {
        "schema_version": SCHEMA_VERSION,
        "title": "Scaling report: " + ", ".join(study.sweeps),
        "sweeps": study.sweeps,
        "generated": generated,
        "confidence": CONFIDENCE,
        "headline": [first_screen.headline(study, curve) for curve in study.curves] or [lead],
        "setting": first_screen.setting(study),
        "lead": lead,
        "answers": [
            {"question": question, "text": text}
            for question, text in first_screen.answers(study, sections).items()
        ],
        "emulated": study.emulated,
        "caveats": first_screen.caveats(study),
        "curves": plain(study.curves),
        "repeat_plan": repeat_plan(study.curves),
        "figures": [
            {"file": f"{each.name}.png", "title": each.title, "alt": each.alt, "emulated": study.emulated}
            for section in sections
            for each in section.figures
        ],
        "sections": plain(sections),
        "definitions": DEFINITIONS,
        "excluded_runs": [
            {"sweep": run.sweep, "run": run.name, "state": run.state, "reason": run.note}
            for run in study.runs
            if not run.included
        ],
        "overlaps": [
            {"run": one, "other": other, "hosts": each.hosts, "seconds": each.seconds, "gpus": each.gpus}
            for each in study.overlaps
            for one, other in [map(first_screen.run_name, each.runs)]
        ],
    }


def plain(value: Any) -> Any:
    """A value as JSON has it: a dataclass is an object, and a run its name."""
    if isinstance(value, Run):
        return value.name
    if is_dataclass(value):
        names = (each.name for each in fields(value) if each.name not in _LEFT_OUT)
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value
