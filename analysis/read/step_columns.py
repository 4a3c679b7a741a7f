"""Step records of all ranks of a run as columns: the rows of `Frames.steps`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.read.cache import cached
from analysis.read.collectives import files_by_number
from analysis.read.columns import Columns, concatenated
from analysis.read.json_columns import read_numbers
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES

_NEVER = np.iinfo(np.int64).max

SECONDS = ("start_s", "step_s", *PHASES, "comm_exposed_s")
_COUNTS = ("step", "first", "steps", "samples")

StepFile = tuple[int, int, Path]
"""Number of the attempt, rank, and path of a file with step records."""

_NO_ROWS: Columns = {
    "attempt": np.empty(0, dtype=np.int16),
    **{name: np.empty(0, dtype=np.int32) for name in ("rank", "step", "steps", "samples")},
    **{name: np.empty(0, dtype=np.float64) for name in SECONDS},
}


def read_step_columns(run: RunDir, unreadable: list[str]) -> tuple[Columns, Path | None]:
    """Records of all attempts and ranks: attempt, rank, step, steps, samples and `SECONDS`.

    Rows are in the order of attempt, rank and line. Missing seconds are NaN. Messages on records that cannot
    be read are appended to `unreadable`.

    Returns:
        The columns, and the path of their cached table (`cache.cached`).

    Raises:
        OSError: a file cannot be read.
    """
    files = step_files(run)
    if not files:
        return parse_steps(files, unreadable), None
    paths = [path for *_, path in files]
    table, messages, path = cached(run.path, paths, lambda notes: pa.table(parse_steps(files, notes)))
    unreadable += messages
    return {name: table[name].to_numpy() for name in table.column_names}, path


def step_files(run: RunDir) -> list[StepFile]:
    """The files with step records, in the order of attempt and rank."""
    return [
        (attempt.number, rank, path)
        for attempt in run.attempts()
        for rank, path in files_by_number(attempt.path, "steps-")
    ]


def parse_steps(files: Sequence[StepFile], unreadable: list[str]) -> Columns:
    """The records of these files, without the cache; columns and errors are those of `read_step_columns`."""
    parts = [_parse_file(*file, unreadable) for file in files]
    return concatenated(parts) if parts else dict(_NO_ROWS)


def lineage_ends(steps: Columns, last_attempt: int | None) -> dict[tuple[int, int], int]:
    """By attempt and rank, the first step that is not part of the final model, as in `read_steps`.

    It is the first step of the newer attempts of the rank, up to `last_attempt`; 0 for attempts after it.
    """
    attempt, rank, step = steps["attempt"], steps["rank"], steps["step"]
    starts = np.flatnonzero(np.r_[True, (attempt[1:] != attempt[:-1]) | (rank[1:] != rank[:-1])][: step.size])
    ends: dict[tuple[int, int], int] = {}
    begun: dict[int, int] = {}  # by rank, the first step of the attempts after the present one
    for start in starts[::-1]:
        number, of_rank, first = int(attempt[start]), int(rank[start]), int(step[start])
        if last_attempt is not None and number > last_attempt:
            ends[number, of_rank] = 0
            continue
        ends[number, of_rank] = begun.get(of_rank, _NEVER)
        begun[of_rank] = min(first, begun.get(of_rank, first))
    return ends


def in_lineage(columns: Columns, ends: Mapping[tuple[int, int], int]) -> NDArray[np.bool_]:
    """Whether each row (attempt, rank, step) is part of the final model, by `lineage_ends`."""
    attempt, rank, step = columns["attempt"], columns["rank"], columns["step"]
    starts = np.flatnonzero(np.r_[True, (attempt[1:] != attempt[:-1]) | (rank[1:] != rank[:-1])][: step.size])
    limits = [ends.get((int(attempt[start]), int(rank[start])), _NEVER) for start in starts]
    return step < np.repeat(np.array(limits, dtype=np.int64), np.diff(np.r_[starts, step.size]))


def in_ranges(step: NDArray[Any], ranges: Iterable[Sequence[int]]) -> NDArray[np.bool_]:
    """Whether each step lies in one of the ranges (first, last)."""
    found = np.zeros(step.size, dtype=np.bool_)
    for first, last in ranges:
        found |= (step >= first) & (step <= last)
    return found


def _parse_file(attempt: int, rank: int, path: Path, unreadable: list[str]) -> Columns:
    numbers = read_numbers(path, _COUNTS, SECONDS, unreadable)
    step = np.where(np.isnan(numbers["first"]), numbers["step"], numbers["first"])
    whole = ~np.isnan(step) & ~np.isnan(numbers["step_s"])
    if not whole.all():
        unreadable.append(f"{path}: {np.count_nonzero(~whole)} records without `step` or `step_s`")
        step, numbers = step[whole], {name: values[whole] for name, values in numbers.items()}
    return {
        "attempt": np.full(step.size, attempt, dtype=np.int16),
        "rank": np.full(step.size, rank, dtype=np.int32),
        "step": step.astype(np.int32),
        "steps": _counts(numbers["steps"], 1),
        "samples": _counts(numbers["samples"], 0),
        **{name: numbers[name] for name in SECONDS},
    }


def _counts(values: NDArray[np.float64], missing: int) -> NDArray[np.int32]:
    return np.where(np.isnan(values), missing, values).astype(np.int32)
