"""How busy rank 0's GPU or process was over the steps: its samples, joined to the steps by monotonic time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis.series import read_steps
from disttrain.records.json_files import CorruptFile, read_jsonl
from disttrain.records.run_directory import Attempt, RunDir

FEW_SAMPLES = 5
"""A run with fewer samples in its steps shows nothing of their course."""
_STRETCHES = 60
_SOURCES = {
    "gpu": (Attempt.gpu_samples, "utilization", 1.0),
    "processors": (Attempt.host_samples, "cpu_percent", 0.01),
}
"""File, field, and what one of its units is here."""


def step_at(at_s: ArrayLike, lines: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """The step that each instant fell in; NaN where it fell in none, as in a validation.

    Args:
        at_s: `at_s` of samples of one rank in one attempt.
        lines: `records.Step` and `records.StepAggregate` of that rank in that attempt. The steps of a window
            count as equally long, without a pause between them.
    """
    instants = np.asarray(at_s, dtype=np.float64)
    found = np.full(instants.shape, np.nan)
    known = sorted(
        (
            line["start_s"],
            line["step_s"],
            line["first"] if "first" in line else line["step"],
            line.get("steps", 1),
        )
        for line in lines
        if line["start_s"] is not None
    )
    if known:
        start, took, step, steps = np.array(known, dtype=np.float64).T
        place = np.searchsorted(start, instants, side="right") - 1
        inside = (place >= 0) & (instants < start[place] + took[place])
        place = place[inside]
        into = (instants[inside] - start[place]) / took[place] * steps[place]
        found[inside] = step[place] + np.minimum(np.floor(into), steps[place] - 1)
    return found


def over_steps(table: pd.DataFrame) -> pd.DataFrame:
    """Of the included runs, means over stretches of steps on rank 0: sweep, run, what, step, busy.

    Of `gpu`, `busy` is the share of the time in which a kernel ran; of `processors`, how many of them its
    process kept at work.
    """
    frames = [
        _thinned(found).assign(sweep=row.sweep, run=row.run)
        for row in table[table["included"]].itertuples()
        for _, found in _of_run(RunDir(Path(row.path))).groupby("what")
        if len(found) >= FEW_SAMPLES
    ]
    names = ["sweep", "run", "what", "step", "busy"]
    return pd.concat(frames)[names] if frames else pd.DataFrame(columns=names)


def _of_run(run: RunDir) -> pd.DataFrame:
    """A row for each sample in a step of the final model: what, step, busy."""
    found = [pd.DataFrame({"what": [], "step": [], "busy": []})]
    try:
        by_attempt: dict[int, list[Any]] = {}
        for number, line in read_steps(run, 0).values():
            by_attempt.setdefault(number, []).append(line)
        for number, lines in by_attempt.items():
            for what, (path_in, field, unit) in _SOURCES.items():
                path = path_in(run.attempt(number), 0)
                samples = [each for each in read_jsonl(path) if each["rank"] == 0] if path.exists() else []
                at_s = [each["at_s"] for each in samples]
                values = np.array([each[field] for each in samples], dtype=np.float64)
                found.append(
                    pd.DataFrame({"what": what, "step": step_at(at_s, lines), "busy": unit * values})
                )
    except (OSError, CorruptFile, KeyError, TypeError, ValueError):
        return found[0]
    return pd.concat(found).dropna()


def _thinned(found: pd.DataFrame) -> pd.DataFrame:
    width = max(1, -(-int(found["step"].max()) // _STRETCHES))
    stretch = (found["step"] - 1) // width
    return found.groupby(["what", stretch.rename("stretch")])[["step", "busy"]].mean().reset_index()
