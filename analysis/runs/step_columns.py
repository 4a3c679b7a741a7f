"""Step records of all ranks of a run as columns: the rows of `Frames.steps`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.runs.cache import cached
from analysis.runs.collectives import files_by_number
from analysis.runs.columns import Columns
from analysis.runs.json_columns import read_columns
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES

_NONE = np.iinfo(np.int32).min
_NEVER = np.iinfo(np.int64).max

SECONDS = ("start_s", "step_s", *PHASES, "comm_exposed_s")
_RECORD = pa.schema(
    [
        *((name, pa.int32()) for name in ("step", "first", "steps", "samples")),
        *((name, pa.float64()) for name in SECONDS),
    ]
)

_NO_ROWS = pa.schema(
    [
        ("attempt", pa.int16()),
        *((name, pa.int32()) for name in ("rank", "step", "steps", "samples")),
        *((name, pa.float64()) for name in SECONDS),
    ]
).empty_table()


def read_step_columns(run: RunDir, unreadable: list[str]) -> tuple[Columns, Path | None]:
    """Records of all attempts and ranks: attempt, rank, step, steps, samples and `SECONDS`.

    Rows are in the order of attempt, rank and line. Missing seconds are NaN. Messages on records that cannot
    be read are appended to `unreadable`.

    Returns:
        The columns, and the path of their cached table (`cache.cached`).

    Raises:
        OSError: a file cannot be read.
    """
    files = [
        (attempt.number, rank, path)
        for attempt in run.attempts()
        for rank, path in files_by_number(attempt.path, "steps-")
    ]
    if not files:
        return {name: _NO_ROWS[name].to_numpy() for name in _NO_ROWS.column_names}, None
    table, messages, path = cached(run.path, [path for *_, path in files], lambda notes: _parse(files, notes))
    unreadable += messages
    return {name: table[name].to_numpy() for name in table.column_names}, path


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


def _parse(files: Sequence[tuple[int, int, Path]], unreadable: list[str]) -> pa.Table:
    tables = [_parse_file(*file, unreadable) for file in files]
    return pa.concat_tables(tables)


def _parse_file(attempt: int, rank: int, path: Path, unreadable: list[str]) -> pa.Table:
    table = read_columns(path, _RECORD, unreadable)
    first, step = (table[name].fill_null(_NONE).to_numpy() for name in ("first", "step"))
    step = np.where(first == _NONE, step, first)
    rows = step.size
    columns = {
        "attempt": np.full(rows, attempt, dtype=np.int16),
        "rank": np.full(rows, rank, dtype=np.int32),
        "step": step,
        "steps": table["steps"].fill_null(1).to_numpy(),
        "samples": table["samples"].fill_null(0).to_numpy(),
        **{name: table[name].fill_null(np.nan).to_numpy() for name in SECONDS},
    }
    whole = (step != _NONE) & ~np.isnan(columns["step_s"])
    if not whole.all():
        unreadable.append(f"{path}: {np.count_nonzero(~whole)} records without `step` or `step_s`")
        columns = {name: values[whole] for name, values in columns.items()}
    return pa.table(columns)
