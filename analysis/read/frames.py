"""Runs, their steps and hardware samples as pandas frames, for notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.read.axes import swept_values
from analysis.read.load import load_runs
from analysis.read.run import Run
from analysis.read.run_table import COLUMNS, column_value
from analysis.read.samples import Samples
from analysis.read.steps import Floats, Steps

_SAMPLE = ("attempt", "rank", "host", "step")
_STEP = (*_SAMPLE, "counts", "samples", "measured", "kept")


@dataclass(frozen=True)
class Frames:
    """Run directories as frames."""

    runs: pd.DataFrame
    """One row a run (`COLUMNS`, and the swept keys)."""
    steps: pd.DataFrame
    """One row a rank and step record, in the order of run, attempt, rank and step: `path` of the run, and the
    arrays of `analysis.read.steps.Steps` but the histograms."""
    hardware: pd.DataFrame
    """One row a sample of a GPU or of a rank's process (`kind`): `path` of the run, and the arrays of
    `analysis.read.samples.Samples`, whose values are those of `disttrain.records.hardware`."""
    problems: tuple[str, ...] = ()
    """One line for each record or file that could not be read."""
    incomplete: tuple[str, ...] = ()
    """One line for each included run whose ranks lack step records."""


def table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a run (`COLUMNS`, and the keys that a sweep varies, by their dotted names), by sweep, size and
    name."""
    axes = {
        path: {_column(key): value for key, value in of_run.items()}
        for path, of_run in swept_values(runs).items()
    }
    keys = sorted({key for of_run in axes.values() for key in of_run})
    rows = [{name: column_value(run, name) for name in COLUMNS} | axes[run.path] for run in runs]
    for row in rows:
        row["left_out"] = row["left_out"] and json.dumps(row["left_out"])
    return pd.DataFrame(rows, columns=[*COLUMNS, *keys]).convert_dtypes()


def swept_keys(runs: pd.DataFrame) -> list[str]:
    """The axis columns of a table: keys that at least one sweep varies."""
    return [column for column in runs.columns if column not in COLUMNS]


def _column(key: str) -> str:
    """Column of a swept key; `axes.NAME` where another column has that name."""
    return f"axes.{key}" if key in COLUMNS else key


def load_frames(sweeps: Iterable[Path | str], **options: Any) -> Frames:
    """Frames of the runs in these sweeps' folders; arguments and errors are those of `load_runs`."""
    return frames(load_runs(sweeps, **options))


def frames(runs: Sequence[Run]) -> Frames:
    """Frames of these runs."""
    return Frames(
        table(runs),
        _joined({"run": run.path} | _columns(run.steps, run.steps.seconds, _STEP) for run in runs),
        _joined(
            {"run": run.path, "kind": kind} | _columns(samples, samples.values, _SAMPLE)
            for run in runs
            for kind, samples in run.samples.items()
        ),
        tuple(problem for run in runs for problem in run.problems),
        tuple(f"{run.path}/attempts: {text}" for run in runs for text in run.incomplete),
    )


def _columns(records: Steps | Samples, values: Mapping[str, Floats], names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(records, name) for name in names} | {**values}


def _joined(parts: Iterable[dict[str, Any]]) -> pd.DataFrame:
    found = pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)
    return found.astype({name: "category" for name in ("run", "kind", "host") if name in found})
