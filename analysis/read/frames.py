"""Runs, their steps and hardware samples as pandas frames, for notebooks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.read.load import load_runs
from analysis.read.run import Run
from analysis.read.run_table import table
from analysis.read.samples import VALUES
from analysis.read.steps import SECONDS

STEP_COLUMNS: dict[str, str] = {
    "run": "category",  # `path` of the run
    "attempt": "int16",
    "rank": "int32",
    "host": "category",  # name of the node; empty if unknown
    "step": "int32",  # the first step of an aggregate
    "steps": "int32",  # 1, or the number of steps of an aggregate
    "samples": "int32",
    **dict.fromkeys(SECONDS, "float64"),  # sums for aggregates; NaN where not measured
    "measured": "bool",  # kept, and neither warm-up nor profiled
    "kept": "bool",  # part of the final model: not repeated after a resume
}
"""Columns of `Frames.steps` and their types. The times are those of `records.steps`."""

HARDWARE_COLUMNS: dict[str, str] = {
    "run": "category",  # `path` of the run
    "attempt": "int16",
    "rank": "int32",  # the first rank that uses the GPU, or the rank of the process
    "host": "category",  # name of the node; empty if unknown
    "kind": "category",  # gpu or process
    "step": "float64",  # step of the final model in which the sample lies; else NaN
    "time_s": "float64",  # since the epoch
    **dict.fromkeys(itertools.chain(*VALUES.values()), "float64"),  # NaN where the device does not report it
}
"""Columns of `Frames.hardware` and their types. The values are those of `records.hardware`."""


@dataclass(frozen=True)
class Frames:
    """Run directories as frames."""

    runs: pd.DataFrame
    """One row a run (`COLUMNS`, and the swept keys)."""
    steps: pd.DataFrame
    """One row a rank and step record (`STEP_COLUMNS`), in the order of run, attempt, rank and step."""
    hardware: pd.DataFrame
    """One row a sample of a GPU or of a rank's process (`HARDWARE_COLUMNS`)."""
    problems: tuple[str, ...] = ()
    """One line for each record or file that could not be read."""
    incomplete: tuple[str, ...] = ()
    """One line for each included run whose ranks lack step records."""


def load(sweeps: Iterable[Path | str], **options: Any) -> pd.DataFrame:
    """The table of the runs in these sweeps' folders; arguments and errors are those of `load_runs`."""
    return table(load_runs(sweeps, **options))


def load_frames(sweeps: Iterable[Path | str], **options: Any) -> Frames:
    """Frames of the runs in these sweeps' folders; arguments and errors are those of `load_runs`."""
    return frames(load_runs(sweeps, **options))


def frames(runs: Sequence[Run]) -> Frames:
    """Frames of these runs."""
    paths = pd.Index([run.path for run in runs])
    return Frames(
        table(runs),
        _typed([_step_rows(run) for run in runs], STEP_COLUMNS, paths),
        _typed([rows for run in runs for rows in _hardware_rows(run)], HARDWARE_COLUMNS, paths),
        tuple(problem for run in runs for problem in run.problems),
        tuple(f"{run.path}/attempts: {text}" for run in runs for text in run.incomplete),
    )


def _typed(parts: Sequence[dict[str, Any]], dtypes: Mapping[str, str], paths: pd.Index) -> pd.DataFrame:
    """A frame of columns of single runs; an absent column is NaN."""
    sizes = [part["rank"].size for part in parts]
    data: dict[str, Any] = {}
    for name, dtype in dtypes.items():
        missing = np.nan if dtype == "float64" else ""
        columns = [
            part[name] if isinstance(part.get(name), np.ndarray) else np.full(size, part.get(name, missing))
            for part, size in zip(parts, sizes, strict=True)
        ]
        data[name] = np.concatenate(columns) if columns else []
        if dtype == "category":
            data[name] = pd.Categorical(data[name], paths if name == "run" else None)
    return pd.DataFrame(data).astype(dict(dtypes))


def _step_rows(run: Run) -> dict[str, Any]:
    steps = run.steps
    names = ("attempt", "rank", "host", "step", "samples", "measured", "kept")
    columns = {name: getattr(steps, name) for name in names}
    return {"run": run.path, "steps": steps.counts, **columns, **steps.seconds}


def _hardware_rows(run: Run) -> list[dict[str, Any]]:
    names = ("attempt", "rank", "host", "step")
    return [
        {"run": run.path, "kind": kind, **{name: getattr(each, name) for name in names}, **each.values}
        | {"time_s": each.values["time"]}
        for kind, each in run.samples.items()
    ]
