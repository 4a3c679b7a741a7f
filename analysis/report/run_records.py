"""Facts on runs that the report lists: quality, cost, overlaps, provenance."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from analysis.read.attempts import machine_facts
from analysis.read.run_table import runs_of
from analysis.results.curves import Curve, Unit

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
    "threads_per_rank": "Compute threads of a rank",
    "warmup_steps": "Warm-up steps",
    "comm_method": "Exposed communication by",
    "preflight": "Pre-flight",
    "created": "Planned",
    "updated": "Measured",
}


class TrainingQuality(NamedTuple):
    """Losses of the runs of one point at their last validation; means over repeats."""

    curve: str
    unit: Unit
    size: int
    shape: str
    repeats: int
    steps: int
    train_loss: float | None
    valid_loss: float | None
    bits_per_byte: float | None
    unigram_entropy_bits: float | None
    """Bits per byte of a model of byte frequencies alone."""
    accuracy: float | None


class RunCost(NamedTuple):
    """GPU-hours and queue time of one run over all attempts, finished or not."""

    sweep: str
    run: str
    state: str
    attempts: int
    hours: float
    unit: str
    """`GPU-hours`, or `CPU rank-hours` where ranks had no GPU."""
    hours_bound: float | None
    """Most hours that one start may use: its time limit times its devices."""
    queue_wait_s: float | None
    """Summed over all starts; None if no submission is on record."""
    source: str
    """`sacct`: Slurm's accounting; `timestamps`: the attempts' own times."""


def run_costs(runs: pd.DataFrame) -> list[RunCost]:
    """Device-hours of each started run."""
    return [_run_cost(row) for row in runs[runs["hours"].notna()].to_dict("records")]


def training_quality(curve: Curve, included: pd.DataFrame) -> list[TrainingQuality]:
    """Losses of the runs of each point at their last validation."""
    found = []
    for point in curve.points:
        repeats = included[(included["sweep"] == curve.sweep) & included["run"].isin(point.runs)]
        for steps, runs in repeats.groupby("steps"):  # losses after other numbers of steps do not compare
            means = {
                name: none_if_missing(runs[name].mean())
                for name in ("train_loss", "valid_loss", "bits_per_byte", "unigram_entropy_bits", "accuracy")
            }
            if any(value is not None for value in means.values()):
                found.append(
                    TrainingQuality(
                        curve=curve.label,
                        unit=curve.unit,
                        size=point.size,
                        shape=point.shape,
                        repeats=len(runs),
                        steps=int(steps),
                        **means,
                    )
                )
    return found


def _run_cost(row: dict[Any, Any]) -> RunCost:
    names = {"unit": "hours_unit", "source": "usage_source"}
    return RunCost(**{name: none_if_missing(row[names.get(name, name)]) for name in RunCost._fields})


def provenance(runs: pd.DataFrame) -> dict[str, list[str]]:
    """Values of the properties of runs, by name."""
    found = {}
    for column, name in _PROVENANCE.items():
        values = list(dict.fromkeys(str(value) for value in runs[column].dropna().sort_values()))
        if column in ("created", "updated") and len(values) > 2:
            values = [f"{values[0]} to {values[-1]}"]
        if column == "git_commit" and runs["git_dirty"].fillna(False).any():
            values = [f"{value} with uncommitted changes (see run.json)" for value in values]
        if values:
            found[name] = values
    return {**found, **machine_facts(attempt for run in runs_of(runs) for attempt in run.attempts[-1:])}


def none_if_missing(value: Any) -> Any:
    """None for a missing value of pandas."""
    return None if pd.isna(value) else value
