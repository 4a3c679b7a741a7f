"""Runs, their steps, curves and hardware samples as pandas frames, for sections and notebooks."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.read.attempts import Machine, machine_of
from analysis.read.load import KnownState as KnownState
from analysis.read.load import load_runs
from analysis.read.run import Run
from analysis.read.run_table import runs_of, table
from analysis.read.samples import VALUES, other_load, utilization_by_step
from analysis.read.steps import SECONDS, Floats
from disttrain.config.dotted_keys import get_key

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

RunId = tuple[str, str]
"""Sweep and run name."""


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


def load(
    sweeps: Iterable[Path | str],
    states: Mapping[Path, KnownState] | None = None,
    only: Collection[Path] | None = None,
    *,
    warmup: int = 0,
    reject_warned: bool = False,
) -> pd.DataFrame:
    """The table of the runs in these sweeps' folders; arguments and errors are those of `load_runs`."""
    return table(load_runs(sweeps, states, only, warmup=warmup, reject_warned=reject_warned))


def load_frames(sweeps: Iterable[Path | str], **options: Any) -> Frames:
    """Frames of the runs in these sweeps' folders; arguments and errors are those of `load`."""
    return frames(load(sweeps, **options))


def frames(runs: pd.DataFrame) -> Frames:
    """Frames of the runs of a table."""
    found = runs_of(runs)
    paths = pd.Index([run.path for run in found])
    return Frames(
        runs,
        _typed([_step_rows(run) for run in found], STEP_COLUMNS, paths),
        _typed([rows for run in found for rows in _hardware_rows(run)], HARDWARE_COLUMNS, paths),
        tuple(problem for run in found for problem in run.problems),
        tuple(f"{run.path}/attempts: {text}" for run in found for text in run.incomplete),
    )


def step_times_s(runs: pd.DataFrame) -> dict[RunId, Floats]:
    """`Run.step_durations_s` of each included run."""
    return {_names(run): run.step_durations_s for run in _included(runs)}


def losses(runs: pd.DataFrame) -> pd.DataFrame:
    """Of the included runs: sweep, run, split (train or valid), step, loss, bits_per_byte, accuracy."""
    metrics = ("bits_per_byte", "accuracy")
    rows = [
        (*names, split, point.step, point.loss, *map(point.metrics.get, metrics))
        for run in _included(runs)
        for names in [_names(run)]
        for split, name in (("train", "loss_history"), ("valid", "eval_history"))
        for point in run.curves[name]
    ]
    found = pd.DataFrame(rows, columns=["sweep", "run", "split", "step", "loss", *metrics])
    return found.astype(dict.fromkeys(("loss", *metrics), "float64"))


def gradient_norms(runs: pd.DataFrame) -> pd.DataFrame:
    """Gradient norms of the included runs: sweep, run, step, grad_norm (NaN where it is not finite)."""
    return _by_step(runs, "grad_norm_history", "grad_norm")


def communication_ratios(runs: pd.DataFrame) -> pd.DataFrame:
    """Exposed communication / compute on rank 0 in the included runs: sweep, run, step, ratio."""
    return _by_step(runs, "communication_computation_history", "ratio")


def _by_step(runs: pd.DataFrame, curve: str, value: str) -> pd.DataFrame:
    curves = ((_names(run), run.curves[curve]) for run in _included(runs))
    rows = [(*names, point.step, getattr(point, value)) for names, points in curves for point in points]
    return pd.DataFrame(rows, columns=["sweep", "run", "step", value]).astype({value: "float64"})


def utilization(runs: pd.DataFrame) -> pd.DataFrame:
    """`samples.utilization_by_step` of the included runs: sweep, run, device, step, utilization."""
    rows = [
        (*names, device, *values)
        for run in _included(runs)
        for names in [_names(run)]
        for device, means in utilization_by_step(run.samples).items()
        for values in zip(*means, strict=True)
    ]
    return pd.DataFrame(rows, columns=["sweep", "run", "device", "step", "utilization"])


def busy_shares(runs: pd.DataFrame) -> pd.Series:
    """Share of the processors of each run on CPUs that other processes kept busy; NaN where it is unknown, as
    for runs with loader processes, which are no ranks."""
    loads = [
        other_load(run.samples["process"])
        if run.metrics and run.metrics.device == "cpu" and not get_key(run.config, "data.workers")
        else None
        for run in runs_of(runs)
    ]
    return pd.Series(loads, runs.index, dtype="float64") / runs["cpu_count"].astype("float64")


def one_machine_of(runs: pd.DataFrame) -> list[Machine]:
    """`machine_of` each run that has it."""
    machines = (machine_of(run.attempts) for run in runs_of(runs))
    return [machine for machine in machines if machine is not None]


def _included(runs: pd.DataFrame) -> list[Run]:
    return runs_of(runs[runs["included"]])


def _names(run: Run) -> RunId:
    return run.folder.sweep, run.folder.name


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
