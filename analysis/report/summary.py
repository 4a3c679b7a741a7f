"""From the table of runs and its curves to the `Report` that all three twins are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.efficiency import Curve
from analysis.report import narrative
from analysis.report.model import Fact, Learned, LeftOut, Picture, Report, Run, Used
from analysis.stats import CONFIDENCE

NOTHING = "No finished run to report on"

_FACTS = {
    "code_hash": "Code (hash)",
    "git_commit": "Commit",
    "command": "Command",
    "host": "Host",
    "device": "Device",
    "backend": "Backend",
    "torch": "torch",
    "python": "Python",
    "model": "Model",
    "parameters": "Parameters",
    "dataset": "Data",
    "dataset_version": "Data version",
    "dataset_sha256": "Data (SHA-256)",
    "strategy": "Strategy",
    "created": "Planned",
    "updated": "Measured",
}


def summarize(
    table: pd.DataFrame, curves: Sequence[Curve], pictures: Sequence[Picture], generated: str
) -> Report:
    """Everything the report says; `generated` is when, in UTC."""
    used = table[table["included"]]
    sweeps = sorted(table["sweep"].unique())
    return Report(
        title="Scaling report: " + ", ".join(sweeps),
        sweeps=sweeps,
        generated=generated,
        confidence=CONFIDENCE,
        headline=[narrative.headline(curve, len(curves)) for curve in curves] or [NOTHING],
        notices=narrative.notices(table, curves),
        curves=list(curves),
        learned=[learned for curve in curves for learned in _learned(curve, used)],
        pictures=list(pictures),
        runs=[Run(**_fields(Run, row)) for row in used.to_dict("records")],
        left_out=[
            LeftOut(sweep=row["sweep"], run=row["run"], state=row["state"], why=row["note"])
            for row in table[~table["included"]].to_dict("records")
        ],
        used=[_used(row) for row in table[table["hours"].notna()].to_dict("records")],
        method=narrative.method(table) if curves else [],
        provenance=_provenance(used if len(used) else table),
    )


def _learned(curve: Curve, used: pd.DataFrame) -> list[Learned]:
    found = []
    for point in curve.points:
        runs = used[(used["sweep"] == curve.sweep) & used["run"].isin(point.runs)]
        means = {
            name: _none(runs[name].mean())
            for name in ("train_loss", "valid_loss", "bits_per_byte", "unigram_entropy_bits", "accuracy")
        }
        steps = int(runs["steps"].max())
        if any(value is not None for value in means.values()):
            found.append(
                Learned(
                    curve=curve.label,
                    unit=curve.unit,
                    size=point.size,
                    launches=len(runs),
                    steps=steps,
                    **means,
                )
            )
    return found


def _used(row: dict[Any, Any]) -> Used:
    names = {"unit": "hours_unit", "source": "usage_source"}
    return Used(**{name: _none(row[names.get(name, name)]) for name in Used.model_fields})


def _provenance(runs: pd.DataFrame) -> list[Fact]:
    facts = []
    for column, name in _FACTS.items():
        values = list(dict.fromkeys(str(value) for value in runs[column].dropna().sort_values()))
        if column in ("created", "updated") and len(values) > 2:
            values = [f"{values[0]} to {values[-1]}"]
        if column == "git_commit" and runs["git_dirty"].fillna(False).any():
            values = [f"{value} with uncommitted changes (see run.json)" for value in values]
        if values:
            facts.append(Fact(name=name, values=values))
    return facts


def _fields(model: type[Run], row: dict[Any, Any]) -> dict[str, Any]:
    return {name: _none(row[name]) for name in model.model_fields}


def _none(value: Any) -> Any:
    return None if pd.isna(value) else value
