"""Runs, their steps, collectives and hardware samples as typed frames."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.read import attempts, cache
from analysis.read.collectives import COLLECTIVE_COLUMNS
from analysis.read.columns import FrameOfRuns
from analysis.read.load import COLUMNS as COLUMNS
from analysis.read.load import KnownState as KnownState
from analysis.read.load import load as load
from analysis.read.load import swept_keys as swept_keys
from analysis.read.map_runs import map_runs
from analysis.read.run_records import read_run
from analysis.read.samples import HARDWARE_COLUMNS
from analysis.read.step_columns import SECONDS

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


@dataclass(frozen=True)
class Frames:
    """Run directories as frames."""

    runs: pd.DataFrame
    """One row a run (`load.COLUMNS`, and the swept keys)."""
    steps: pd.DataFrame
    """One row a rank and step record (`STEP_COLUMNS`), in the order of run, attempt, rank and step."""
    collectives: pd.DataFrame
    """One row a rank, profiled step and collective (`COLLECTIVE_COLUMNS`)."""
    hardware: pd.DataFrame
    """One row a sample of a GPU or of a rank's process (`HARDWARE_COLUMNS`)."""
    problems: tuple[str, ...] = ()
    """One line for each record or file that could not be read."""
    incomplete: tuple[str, ...] = ()
    """One line for each included run whose ranks lack step records (`missing_ranks`)."""


def load_frames(
    sweeps: Iterable[Path | str],
    states: Mapping[Path, KnownState] | None = None,
    only: Collection[Path] | None = None,
    *,
    reject_warned: bool = False,
) -> Frames:
    """Read the runs in these sweeps' folders; arguments and errors are those of `load`.

    `reject_warned`: `included` of runs whose pre-flight had warnings is false (`attempts.reject_warned`).
    """
    runs = load(sweeps, states, only)
    return read_frames(attempts.reject_warned(runs) if reject_warned else runs, whole_sweeps=only is None)


def read_frames(runs: pd.DataFrame, *, whole_sweeps: bool = False) -> Frames:
    """Frames of the runs of a table of `load`.

    Args:
        runs: a table of `load`.
        whole_sweeps: the table has all runs of its sweeps. Cached tables that none of them uses are deleted.
    """
    steps, collectives, hardware = map(FrameOfRuns, (STEP_COLUMNS, COLLECTIVE_COLUMNS, HARDWARE_COLUMNS))
    problems: list[str] = []
    incomplete: list[str] = []
    used: set[Path] = set()
    for found in map_runs(read_run, runs):
        steps.append(found.steps, found.hosts)
        collectives.append(found.collectives, found.hosts)
        hardware.append(found.hardware, found.hosts)
        problems += found.problems
        incomplete += found.incomplete
        used |= {found.cached} if found.cached else set()
    if whole_sweeps:
        for sweep in {Path(path).parent for path in runs["path"]}:
            cache.remove_unused(sweep, used)
    paths = runs["path"].tolist()
    return Frames(
        runs,
        steps.frame(paths),
        collectives.frame(paths),
        hardware.frame(paths),
        tuple(problems),
        tuple(incomplete),
    )
