"""Collectives of the profiled steps of all ranks of a run as columns: the rows of `Frames.collectives`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.read.columns import Columns, concatenated
from analysis.read.json_columns import read_columns
from disttrain.records.run_directory import RunDir

COLLECTIVE_COLUMNS: dict[str, str] = {
    "run": "category",  # `path` of the run
    "attempt": "int16",
    "rank": "int32",
    "host": "category",  # name of the node; empty if unknown
    "step": "int32",
    "kind": "category",  # all_reduce, all_gather, ...
    "bucket": "int32",  # index among the collectives of its kind in the step
    "bytes": "float64",  # larger of input and output on the rank; NaN if unknown
    "ranks": "int32",  # of its process group
    "dimension": "category",  # of the mesh: world, shard, replicate
    "start_s": "float64",  # since the step began
    "duration_s": "float64",  # with queueing and waiting for peers
    "hidden_s": "float64",
    "exposed_s": "float64",
    "kept": "bool",  # of a step of the final model
}
"""Columns of `Frames.collectives` and their types. The times are those of `records.communication`."""

_SECONDS = ("start_s", "duration_s", "hidden_s", "exposed_s")
_COLLECTIVE = pa.struct(
    [
        ("kind", pa.string()),
        ("bucket", pa.int32()),
        ("bytes", pa.int64()),
        ("ranks", pa.int32()),
        ("dimension", pa.string()),
        *((name, pa.float64()) for name in _SECONDS),
    ]
)
_RECORD = pa.schema([("step", pa.int32()), ("collectives", pa.list_(_COLLECTIVE))])


def read_collectives(run: RunDir, world_size: int | None, unreadable: list[str]) -> Columns:
    """The columns of `COLLECTIVE_COLUMNS` except `run`, `host` and `kept`; empty without such records.

    Args:
        run: the run directory.
        world_size: ranks of the collectives of records that lack the number.
        unreadable: a message on each record that cannot be read is appended.

    Raises:
        OSError: a file cannot be read.
    """
    parts = [
        _read_file(attempt.number, rank, path, world_size or 0, unreadable)
        for attempt in run.attempts()
        for rank, path in files_by_number(attempt.path, "comm-")
    ]
    parts = [part for part in parts if part["step"].size]
    return concatenated(parts) if parts else {}


def files_by_number(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """The JSON Lines files of ranks or nodes, `PREFIXnumber.jsonl`, by number."""
    found = ((path.stem.removeprefix(prefix), path) for path in folder.glob(f"{prefix}*.jsonl"))
    return sorted((int(number), path) for number, path in found if number.isdigit())


def _read_file(attempt: int, rank: int, path: Path, world_size: int, unreadable: list[str]) -> Columns:
    records = read_columns(path, _RECORD, unreadable)
    whole = records["step"].is_valid().to_numpy() & records["collectives"].is_valid().to_numpy()
    if not whole.all():
        unreadable.append(f"{path}: {np.count_nonzero(~whole)} records without `step` or `collectives`")
        records = records.filter(pa.array(whole))
    nested = records["collectives"].combine_chunks()
    if isinstance(nested, pa.ChunkedArray):  # without any record
        nested = pa.array([], type=pa.list_(_COLLECTIVE))
    each = pa.table(dict(zip(_COLLECTIVE.names, nested.flatten().flatten(), strict=True)))
    steps = records["step"].to_numpy()[nested.value_parent_indices().to_numpy()]
    return {
        "attempt": np.full(steps.size, attempt, dtype=np.int16),
        "rank": np.full(steps.size, rank, dtype=np.int32),
        "step": steps,
        "kind": each["kind"].fill_null("").to_numpy().astype(object),
        "bucket": each["bucket"].fill_null(0).to_numpy(),
        "bytes": each["bytes"].cast(pa.float64()).fill_null(np.nan).to_numpy(),
        "ranks": each["ranks"].fill_null(world_size).to_numpy(),
        "dimension": each["dimension"].fill_null("world").to_numpy().astype(object),
        **{name: each[name].fill_null(np.nan).to_numpy() for name in _SECONDS},
    }
