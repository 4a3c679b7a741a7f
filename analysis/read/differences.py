"""Differences of two sets of runs in config, code and environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from disttrain.config import stop_time
from disttrain.config.config_tree import config_fields
from disttrain.config.dotted_keys import flat_values
from disttrain.config.sections.base import is_excluded_from_key
from disttrain.records.heartbeat import SCRIPT_TIMEOUT_VARIABLE
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import ATTEMPT, CHECKPOINT_DIR, RUN_DIR, SAVED, RunDir

Part = Literal["config", "code", "environment"]
PARTS: tuple[Part, ...] = get_args(Part)

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
_OF_ONE_START = {*stop_time.VARIABLES, RUN_DIR, ATTEMPT, CHECKPOINT_DIR, SAVED, SCRIPT_TIMEOUT_VARIABLE}
"""Variables that follow from the time of a start, from the run directory, and from a limit on hangs."""
_SEARCH_PATH = "PYTHONPATH"
_CODE_COPY = re.compile(r"[^:]*/\.code/[^/:]+")
"""Folder of a copy of the code. Its name holds the code hash, which is compared by itself."""
_UNKNOWN = "unknown"
"""Value in an ingested run of a property that the table does not have."""
_OF_THE_INGEST = {_ENVIRONMENT[column] for column in ("python", "host")}
"""Properties of an ingested run that are those of `submit.py ingest`."""


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
    """Properties in which the runs differ from the runs of the base: rows of `analysis.read.load.load`.

    Left out are config keys that change neither results nor speed, and variables that follow from the time of
    the start, the run directory or the code hash. A run without `run.json` or `env.json` has no values of
    that file. Of a part that one side does not record at all, only properties that both sides have count.
    """
    found: list[Difference] = []
    for part, read in _READERS.items():
        values, others = [read(row) for row in runs], [read(row) for row in base_runs]
        names = [{key for each in side for key in each} for side in (values, others)]
        partly = part in unrecorded(runs) or part in unrecorded(base_runs)
        for name in sorted(names[0] & names[1] if partly else names[0] | names[1]):
            ours, theirs = _shown(values, name), _shown(others, name)
            if ours != theirs:
                found.append(Difference(part, name, ours, theirs))
    return found


def unrecorded(runs: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Parts of which none of the runs has a record. An ingested run has the shape alone as its config."""
    return [
        part
        for part, read in _READERS.items()
        if not any(read(row) and not (part == "config" and _is_ingested(row)) for row in runs)
    ]


def run_config(row: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a run by dotted key, without those that change neither results nor speed."""
    record = _record(RunDir(Path(row["path"])).run_json)
    config = record.get("config")
    flat = flat_values(config) if isinstance(config, dict) else {}
    known = {key: value for key, value in flat.items() if key not in _NOT_COMPARED}
    return _of_table(known) if _is_ingested(row) else known


def program_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Command, model, data and dtype of a run, as far as they are recorded."""
    config = run_config(row)
    command = config.get("command") or str(row.get("command") or "").split()[:1]
    script = " ".join(Path(word).name for word in command[: 2 if command[:1] == ["-m"] else 1])
    found = {
        "command": "" if script == "submit.py" else script,
        "model": {key: value for key, value in config.items() if key.startswith("model.")},
        "data": [config.get("data.kind"), *_columns(row, {"dataset_sha256": "data"}).values()],
        "dtype": config.get("precision.dtype"),
    }
    return {name: value for name, value in found.items() if value and value != [None]}


def _code(row: Mapping[str, Any]) -> dict[str, Any]:
    return _columns(row, _CODE)


def _environment(row: Mapping[str, Any]) -> dict[str, Any]:
    found = _columns(row, _ENVIRONMENT)
    if _is_ingested(row):
        return _of_table({name: found[name] for name in found if name not in _OF_THE_INGEST})
    variables = _record(RunDir(Path(row["path"])).env_json).get("variables")
    if isinstance(variables, dict):
        values = {name: each.get("value") for name, each in variables.items() if isinstance(each, dict)}
        found |= {name: value for name, value in values.items() if name not in _OF_ONE_START}
        if isinstance(path := values.get(_SEARCH_PATH), str):
            found[_SEARCH_PATH] = _CODE_COPY.sub(".code", path)
    return found


_READERS: Mapping[Part, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "config": run_config,
    "code": _code,
    "environment": _environment,
}


def _of_table(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of an ingested run that its table has."""
    return {name: value for name, value in values.items() if value != _UNKNOWN}


def _is_ingested(row: Mapping[str, Any]) -> bool:
    return _is_known(row.get("ingested"))


def _record(path: Path) -> dict[str, Any]:
    record = read_json_or_none(path)
    return record if isinstance(record, dict) else {}


def _columns(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {name: row[column] for column, name in names.items() if _is_known(row.get(column))}


def _is_known(value: Any) -> bool:
    return value is not None and value == value and str(value) != "<NA>"


def _shown(rows: Iterable[Mapping[str, Any]], name: str) -> str:
    return ", ".join(sorted({str(row.get(name, ABSENT)) for row in rows})) or ABSENT
