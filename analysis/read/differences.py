"""Differences of two sets of runs in config, code and environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from analysis.read.run import UNKNOWN, Run
from analysis.read.run_table import column_value
from disttrain.config.stop_time import DEADLINE_VARIABLES
from disttrain.records.heartbeat import SCRIPT_TIMEOUT_VARIABLE
from disttrain.records.run_directory import ATTEMPT, CHECKPOINT_DIR, RUN_DIR, SAVED, STOP_SIGNAL, RunDir
from disttrain.records.tracking import tracking_variables

Part = Literal["config", "code", "environment"]
PARTS: tuple[Part, ...] = get_args(Part)

ABSENT = "\N{EN DASH}"

_OF_ONE_START = {
    *DEADLINE_VARIABLES, RUN_DIR, ATTEMPT, CHECKPOINT_DIR, SAVED, STOP_SIGNAL, SCRIPT_TIMEOUT_VARIABLE,
    *tracking_variables(RunDir(Path()), ""),
}  # fmt: skip
"""Variables that follow from the time of a start, from the run directory, and from how a job is ended."""
_SEARCH_PATH = "PYTHONPATH"
_CODE_COPY = re.compile(r"[^:]*/\.code/[^/:]+")
"""Folder of a copy of the code. Its name holds the code hash, which is compared by itself."""
_CODE = {"code_hash": "hash", "git_commit": "commit", "git_dirty": "uncommitted changes"}
_ENVIRONMENT = {
    "python": "Python",
    "host": "host of the submission",
    "torch": "torch",
    "device": "device",
    "backend": "backend",
    "cpu_count": "processors",
    "dataset_sha256": "data (SHA-256)",
}
"""Properties by their columns in the table of runs."""


@dataclass(frozen=True)
class Difference:
    """One property whose values differ; several values are separated by commas."""

    part: Part
    name: str
    value: str
    base: str


def differences(runs: Sequence[Run], base_runs: Sequence[Run]) -> list[Difference]:
    """Properties in which the runs differ from the runs of the base.

    Left out are config keys that change neither results nor speed, and variables that follow from the time of
    the start, the run directory or the code hash. A run without `run.json` or `env.json` has no values of
    that file. Of a part that one side does not record at all, only properties that both sides have count.
    """
    found = []
    for part, read in _READERS.items():
        sides = [[read(run) for run in side] for side in (runs, base_runs)]
        names, others = ({name for values in side for name in values} for side in sides)
        partly = any(part in unrecorded(side) for side in (runs, base_runs))
        for name in sorted(names & others if partly else names | others):
            value, base = (_shown(side, name) for side in sides)
            if value != base:
                found.append(Difference(part, name, value, base))
    return found


def unrecorded(runs: Sequence[Run]) -> list[Part]:
    """Parts of which none of the runs has a record. An ingested run has the shape alone as its config."""
    return [
        part
        for part, read in _READERS.items()
        if not any(read(run) and not (part == "config" and run.ingested) for run in runs)
    ]


def program_of(run: Run) -> dict[str, Any]:
    """Command, model, data and dtype of a run, as far as they are recorded."""
    config, dataset = run.compared, run.metrics and run.metrics.dataset
    command = config.get("command") or (run.record.provenance.argv[:1] if run.record else [])
    script = " ".join(Path(word).name for word in command[: 2 if command[:1] == ["-m"] else 1])
    data = [config.get("data.kind"), *([dataset.sha256] if dataset else [])]
    found = {
        "command": "" if script in ("submit.py", "disttrain") else script,
        "model": {key: value for key, value in config.items() if key.startswith("model.")},
        "data": [each for each in data if each],
        "dtype": config.get("precision.dtype"),
    }
    return {name: value for name, value in found.items() if value}


def _properties(run: Run, columns: Mapping[str, str]) -> dict[str, Any]:
    known = {name: column_value(run, column) for column, name in columns.items()}
    return {name: value for name, value in known.items() if value not in (None, UNKNOWN)}


def _environment(run: Run) -> dict[str, Any]:
    variables = {name: value for name, value in run.environment.items() if name not in _OF_ONE_START}
    if isinstance(path := variables.get(_SEARCH_PATH), str):
        variables[_SEARCH_PATH] = _CODE_COPY.sub(".code", path)
    return _properties(run, _ENVIRONMENT) | variables


_READERS: Mapping[Part, Callable[[Run], dict[str, Any]]] = {
    "config": lambda run: run.compared,
    "code": lambda run: _properties(run, _CODE),
    "environment": _environment,
}


def _shown(rows: Iterable[Mapping[str, Any]], name: str) -> str:
    return ", ".join(sorted({str(row.get(name, ABSENT)) for row in rows})) or ABSENT
