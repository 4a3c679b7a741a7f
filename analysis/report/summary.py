"""Make a `Report` from the table of runs and its curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.efficiency import Curve
from analysis.overlaps import Overlap
from analysis.report import narrative
from analysis.report.model import (
    ExcludedRun,
    FigureSpec,
    ProvenanceItem,
    Report,
    Run,
    RunCost,
    RunOverlap,
    TrainingQuality,
)
from analysis.stats.estimates import CONFIDENCE

NOTHING = "No finished run to report on"

_PROVENANCE = {
    "tags": "Tags",
    "user_note": "Note",
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
    table: pd.DataFrame,
    curves: Sequence[Curve],
    specs: Sequence[FigureSpec],
    generated: str,
    unreadable: Sequence[str] = (),
    overlaps: Sequence[Overlap] = (),
) -> Report:
    """The content of the report; `generated` is its time in UTC (ISO 8601), `unreadable` the messages on step
    records that cannot be read."""
    included = table[table["included"]]
    overlapping = _overlaps(overlaps, included)
    sweeps = sorted(table["sweep"].unique())
    return Report(
        title="Scaling report: " + ", ".join(sweeps),
        sweeps=sweeps,
        generated=generated,
        confidence=CONFIDENCE,
        headline=[narrative.headline(curve, len(curves)) for curve in curves] or [NOTHING],
        notices=narrative.notices(table, curves, unreadable, overlapping),
        curves=list(curves),
        training_quality=[row for curve in curves for row in _training_quality(curve, included)],
        figures=list(specs),
        runs=[Run(**_fields(Run, row)) for row in included.to_dict("records")],
        excluded_runs=[
            ExcludedRun(sweep=row["sweep"], run=row["run"], state=row["state"], reason=row["note"])
            for row in table[~table["included"]].to_dict("records")
        ],
        run_costs=[_run_cost(row) for row in table[table["hours"].notna()].to_dict("records")],
        overlaps=overlapping,
        method=narrative.method(table) if curves else [],
        provenance=_provenance(included if len(included) else table),
    )


def _training_quality(curve: Curve, included: pd.DataFrame) -> list[TrainingQuality]:
    found = []
    for point in curve.points:
        repeats = included[(included["sweep"] == curve.sweep) & included["run"].isin(point.runs)]
        for steps, runs in repeats.groupby("steps"):  # losses after other numbers of steps do not compare
            means = {
                name: _none(runs[name].mean())
                for name in ("train_loss", "valid_loss", "bits_per_byte", "unigram_entropy_bits", "accuracy")
            }
            if any(value is not None for value in means.values()):
                found.append(
                    TrainingQuality(
                        curve=curve.label,
                        unit=curve.unit,
                        size=point.size,
                        repeats=len(runs),
                        steps=int(steps),
                        **means,
                    )
                )
    return found


def _overlaps(found: Sequence[Overlap], included: pd.DataFrame) -> list[RunOverlap]:
    """The overlaps of runs that count in the figures, with each other or with other runs."""
    counted = set(included["path"])
    return [
        RunOverlap(
            run=_full_name(each.runs[0]),
            other=_full_name(each.runs[1]),
            hosts=each.hosts,
            seconds=each.seconds,
            gpus=each.gpus,
        )
        for each in found
        if not counted.isdisjoint(map(str, each.runs))
    ]


def _full_name(run: Path) -> str:
    return f"{run.parent.name}/{run.name}"


def _run_cost(row: dict[Any, Any]) -> RunCost:
    names = {"unit": "hours_unit", "source": "usage_source"}
    return RunCost(**{name: _none(row[names.get(name, name)]) for name in RunCost.model_fields})


def _provenance(runs: pd.DataFrame) -> list[ProvenanceItem]:
    items = []
    for column, name in _PROVENANCE.items():
        values = list(dict.fromkeys(str(value) for value in runs[column].dropna().sort_values()))
        if column in ("created", "updated") and len(values) > 2:
            values = [f"{values[0]} to {values[-1]}"]
        if column == "git_commit" and runs["git_dirty"].fillna(False).any():
            values = [f"{value} with uncommitted changes (see run.json)" for value in values]
        if values:
            items.append(ProvenanceItem(name=name, values=values))
    return items


def _fields(model: type[Run], row: dict[Any, Any]) -> dict[str, Any]:
    return {name: _none(row[name]) for name in model.model_fields}


def _none(value: Any) -> Any:
    return None if pd.isna(value) else value
