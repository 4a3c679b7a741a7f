"""Utilization of rank 0's GPU or processors by step: samples joined to steps by monotonic time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis.read import samples
from analysis.read.step_records import read_steps
from disttrain.records.json_files import read_jsonl
from disttrain.records.run_directory import Attempt, RunDir

FEW_SAMPLES = 5
"""Runs with fewer samples within steps are not drawn."""
_SEGMENTS = 60
_SOURCES = {
    "gpu": (Attempt.gpu_samples, "utilization", 1.0),
    "processors": (Attempt.host_samples, "cpu_percent", 0.01),
}
"""File, field, and factor from the field to utilization; 1 is one GPU or processor, busy all the time."""


def step_at(at_s: ArrayLike, records: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """The step in which each instant lies; NaN outside of steps, as during a validation.

    Args:
        at_s: `at_s` of samples of one rank in one attempt, in seconds; any shape.
        records: `records.Step` and step aggregates of that rank in that attempt. The steps of an aggregate
            count as equally long and without pauses.

    Returns:
        Step numbers in the shape of `at_s`.
    """
    known = [
        (
            np.nan if record["start_s"] is None else record["start_s"],
            record["step_s"],
            record["first"] if "first" in record else record["step"],
            record.get("steps", 1),
        )
        for record in records
    ]
    return samples.step_at(at_s, *np.array(known, dtype=np.float64).reshape(-1, 4).T)


def by_step(table: pd.DataFrame) -> pd.DataFrame:
    """Means over segments of steps on rank 0 of included runs: sweep, run, device, step, utilization.

    `utilization` of a `gpu` is the share of time in which a kernel ran; of `processors`, the mean number that
    the process kept busy.
    """
    frames = [
        _thinned(found).assign(sweep=row.sweep, run=row.run)
        for row in table[table["included"]].itertuples()
        for _, found in _of_run(RunDir(Path(row.path))).groupby("device")
        if len(found) >= FEW_SAMPLES
    ]
    names = ["sweep", "run", "device", "step", "utilization"]
    return pd.concat(frames)[names] if frames else pd.DataFrame(columns=names)


def _of_run(run: RunDir) -> pd.DataFrame:
    """One row for each sample in a step of the final model: device, step, utilization."""
    found = [pd.DataFrame({"device": [], "step": [], "utilization": []})]
    try:
        by_attempt: dict[int, list[Any]] = {}
        for number, record in read_steps(run, 0, unreadable=[]).values():
            by_attempt.setdefault(number, []).append(record)
        for number, records in by_attempt.items():
            for device, (path_in, field, unit) in _SOURCES.items():
                path = path_in(run.attempt(number), 0)
                samples = (
                    [each for each in read_jsonl(path, []) if each["rank"] == 0] if path.exists() else []
                )
                at_s = [each["at_s"] for each in samples]
                values = np.array([each[field] for each in samples], dtype=np.float64)
                found.append(
                    pd.DataFrame(
                        {"device": device, "step": step_at(at_s, records), "utilization": unit * values}
                    )
                )
    except (OSError, KeyError, TypeError, ValueError):
        return found[0]
    return pd.concat(found).dropna()


def _thinned(found: pd.DataFrame) -> pd.DataFrame:
    width = max(1, -(-int(found["step"].max()) // _SEGMENTS))
    segment = (found["step"] - 1) // width
    return found.groupby(["device", segment.rename("segment")])[["step", "utilization"]].mean().reset_index()
