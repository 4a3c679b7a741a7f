"""Differences of two sets of runs in config, code and environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from disttrain.config.config_tree import config_fields
from disttrain.config.dotted_keys import flat_values
from disttrain.config.sections.base import is_excluded_from_key
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir

Part = Literal["config", "code", "environment"]

ABSENT = "\N{EN DASH}"

_CODE = {"code_hash": "hash", "git_commit": "commit", "git_dirty": "uncommitted changes"}
_ENVIRONMENT = {
    "torch": "torch",
    "python": "Python",
    "device": "device",
    "backend": "backend",
    "cpu_count": "processors",
    "host": "host of the submission",
    "dataset_sha256": "data (SHA-256)",
}
_NOT_COMPARED = {key for key, field in config_fields() if is_excluded_from_key(field)}


@dataclass(frozen=True)
class Difference:
    """One property whose values differ; several values are separated by commas."""

    part: Part
    name: str
    value: str
    base: str


def differences(
    runs: Sequence[Mapping[str, Any]], base_runs: Sequence[Mapping[str, Any]]
) -> list[Difference]:
    """Properties in which the runs differ from the runs of the base: rows of `analysis.runs.load.load`.

    Config keys that change neither results nor speed are left out. A run without `run.json` or `env.json` has
    no values of that file.
    """
    found: list[Difference] = []
    for part, values, others in (
        ("config", [_config(row) for row in runs], [_config(row) for row in base_runs]),
        ("code", [_columns(row, _CODE) for row in runs], [_columns(row, _CODE) for row in base_runs]),
        ("environment", [_environment(row) for row in runs], [_environment(row) for row in base_runs]),
    ):
        for name in sorted({key for each in (*values, *others) for key in each}):
            ours, theirs = _shown(values, name), _shown(others, name)
            if ours != theirs:
                found.append(Difference(part, name, ours, theirs))  # type: ignore[arg-type]
    return found


def _config(row: Mapping[str, Any]) -> dict[str, Any]:
    record = _record(RunDir(Path(row["path"])).run_json)
    config = record.get("config")
    flat = flat_values(config) if isinstance(config, dict) else {}
    return {key: value for key, value in flat.items() if key not in _NOT_COMPARED}


def _environment(row: Mapping[str, Any]) -> dict[str, Any]:
    variables = _record(RunDir(Path(row["path"])).env_json).get("variables")
    found = _columns(row, _ENVIRONMENT)
    if isinstance(variables, dict):
        found |= {name: each.get("value") for name, each in variables.items() if isinstance(each, dict)}
    return found


def _record(path: Path) -> dict[str, Any]:
    record = read_json_or_none(path)
    return record if isinstance(record, dict) else {}


def _columns(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {name: row[column] for column, name in names.items() if _is_known(row.get(column))}


def _is_known(value: Any) -> bool:
    return value is not None and value == value and str(value) != "<NA>"


def _shown(rows: Iterable[Mapping[str, Any]], name: str) -> str:
    return ", ".join(sorted({str(row.get(name, ABSENT)) for row in rows})) or ABSENT
