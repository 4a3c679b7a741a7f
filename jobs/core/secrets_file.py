"""The values of a sweep's secrets: `runs/<sweep>/secrets.json`, which only its owner can read.

`sweep` and `run` write the file, and the agents of all runs of the sweep read it: each start of a run has the
newest values. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disttrain.records.json_files import json_text, read_json, write_bytes
from disttrain.records.run_directory import RunDir

FILE = "secrets.json"


class MissingSecret(RuntimeError):
    """A secret has no value; the message is one line."""


def add(sweep: Path, values: Mapping[str, str]) -> None:
    """Set these values in the file of a sweep. The caller holds `sweep_lock`."""
    former = _read(sweep) if values else {}
    if former != (merged := {**former, **values}):
        write_bytes(sweep / FILE, json_text(merged).encode(), mode=0o600)


def values_of_run(run: RunDir, config: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
    """Values of the secrets of a run: from the file of its sweep, else from the inherited environment.

    `config` is that in `run.json`. Raises `MissingSecret`, and `CorruptFile` or `OSError` for the file.
    """
    names = config["job"].get("secrets") or ()  # not in the records of older code
    given = {**inherited, **_read(run.path.parent)} if names else {}
    missing = next((name for name in names if name not in given), None)
    if missing is not None:
        raise MissingSecret(
            f"job.secrets: {missing} has no value; give --set job.env.{missing}=VALUE, or export {missing} "
            "in the shell that submits"
        )
    return {name: given[name] for name in names}


def _read(sweep: Path) -> dict[str, str]:
    try:
        return read_json(sweep / FILE)
    except FileNotFoundError:
        return {}
