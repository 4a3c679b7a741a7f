"""`status --csv` and `--parquet`: runs as a table for other programs, one row a run.

docs/tables.md describes the columns. Their order is fixed; the keys of the config follow, by dotted name.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.config.dotted_keys import flat_values
from disttrain.config.ranks import ranks_per_node
from disttrain.errors import ConfigError
from disttrain.records.gpu_hours import attempt_records, iso
from disttrain.records.json_files import CorruptFile, write_bytes
from disttrain.records.run_json import read_run_json_or_none
from jobs.core import journal
from jobs.status.gpu_hours import usage_of_runs
from jobs.status.run_state import RunState

COLUMNS: dict[str, type] = {
    "sweep": str,
    "run": str,
    "state": str,
    "cause": str,
    "message": str,
    "tags": str,
    "note": str,
    "sweep_note": str,
    "nodes": int,
    "ranks_per_node": int,
    "ranks": int,
    "repeat": int,
    "step": int,
    "steps": int,
    "samples_per_s": float,
    "loss": float,
    "attempts": int,
    "submitted": str,
    "started": str,
    "ended": str,
    "hours": float,
    "hours_unit": str,
    "queue_wait_s": float,
    "cluster": str,
    "job_id": str,
    "emulated": bool,
    "stale": bool,
    "config_key": str,
    "run_key": str,
    "code_hash": str,
    "path": str,
}
"""Fixed columns and the types of their values."""


def write(states: Sequence[RunState], file: str, flag: str) -> None:
    """Write CSV (RFC 4180, UTF-8; to stdout for `-`), or Parquet with the flag `--parquet`.

    The types of Parquet columns do not depend on which values are null. Raises `ConfigError`.
    """
    columns, rows = run_rows(states)
    content = io.BytesIO()
    if flag == "--parquet":
        import pyarrow
        from pyarrow import parquet

        types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
        schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), content)
    else:
        text = io.TextIOWrapper(content, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            values = [row.get(name) for name in columns]
            writer.writerow([str(value).lower() if isinstance(value, bool) else value for value in values])
        text.detach()
    if file == "-":
        sys.stdout.write(content.getvalue().decode())
        return
    try:
        write_bytes(Path(file), content.getvalue())
    except OSError as error:
        raise ConfigError(f"cannot write {file!r}: {error.strerror}", at=flag) from None


def run_rows(states: Sequence[RunState]) -> tuple[dict[str, type], list[dict[str, Any]]]:
    """Types of all columns, in order, and the rows in the order of `states`. Unknown values are None."""
    usage = usage_of_runs(state.run for state in states)
    configs, rows = [], []
    for state in states:
        record = read_run_json_or_none(state.run) or {}
        config = flat_values(record.get("config", {}))
        axes = {key: value for key, value in record.get("axes", {}).items() if key not in config}
        # an axis of a script of one's own may have the name of a fixed column
        configs.append(config | {f"axes.{key}" if key in COLUMNS else key: axes[key] for key in axes})
        row = {name: getattr(state, name, None) for name in COLUMNS} | _times(state)
        row |= {"run": state.name, "state": state.displayed_state, "tags": " ".join(state.tags) or None}
        row |= {"repeat": record.get("repeat"), "path": str(state.run.path)}
        nodes = config.get("resources.nodes")
        ranks = ranks_per_node(record["config"]) if config.get("resources.gpus_per_node") else None
        row |= {"nodes": nodes, "ranks_per_node": ranks, "ranks": nodes * ranks if nodes and ranks else None}
        if used := usage.get(state.run.path):
            row |= {"hours": used.hours, "hours_unit": used.unit, "queue_wait_s": used.queue_wait_s}
        rows.append(row)
    keys = dict.fromkeys(key for config in configs for key in config)
    columns = COLUMNS | {key: _common_type([config.get(key) for config in configs]) for key in keys}
    return columns, [
        {name: _converted(value, columns[name]) for name, value in (config | row).items()}
        for row, config in zip(rows, configs, strict=True)
    ]


def _times(state: RunState) -> dict[str, str | None]:
    """First submission, first start and last end: UTC, ISO 8601."""
    submissions, attempts = journal.entries(state.run), attempt_records(state.run)
    intent: Mapping[str, Any] = {}
    if submissions:
        with contextlib.suppress(CorruptFile):
            intent = submissions[0].read("intent") or {}
    over = not state.active and attempts
    ended = attempts[-1].get("ended") or (iso(state.changed) if state.changed else None) if over else None
    return {
        "submitted": intent.get("time"),
        "started": attempts[0].get("started") if attempts else None,
        "ended": ended,
    }


def _common_type(values: Sequence[Any]) -> type:
    """The type of a config key's values: numbers and booleans keep theirs, all else is text."""
    found = {type(value) for value in values if value is not None}
    if found == {int, float}:
        return float
    return next(iter(found)) if len(found) == 1 and found <= {int, float, bool} else str


def _converted(value: Any, kind: type) -> Any:
    if value is None or isinstance(value, kind):
        return value
    if kind is str:
        return json.dumps(value, sort_keys=True)
    return kind(value)
