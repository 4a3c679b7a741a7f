"""Read a run's `run.json`. Standard library only."""

from __future__ import annotations

from typing import Any

from disttrain.records.json_files import CorruptFile, read_json
from disttrain.records.run_directory import RunDir


def read_run_json(run: RunDir) -> dict[str, Any]:
    """The content of `run.json`. Raises `FileNotFoundError`, or `CorruptFile` for a broken file."""
    return read_json(run.run_json)


def read_run_json_or_none(run: RunDir) -> dict[str, Any] | None:
    """The content of `run.json`, or None where the file is missing or corrupt."""
    try:
        return read_run_json(run)
    except (OSError, CorruptFile):
        return None
