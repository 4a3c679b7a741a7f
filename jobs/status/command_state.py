"""Progress and code of a `command`, from the files that it and its agents write. Standard library only."""

from __future__ import annotations

import contextlib
import os

from disttrain.records.reported import read_reported
from disttrain.records.run_directory import RunDir
from jobs.core import command_code


def reported_progress(run: RunDir, attempt: int) -> dict[str, float]:
    """The progress of a command without telemetry: its figures, and the time of its newest file."""
    reported = read_reported(run)
    names = ("step", "steps", "samples_per_s", "loss")
    found: dict[str, float] = {name: reported[name] for name in names if name in reported}
    times = []
    for path in (run.metrics, run.attempt(attempt).rank_log(0)):
        with contextlib.suppress(OSError):
            times.append(os.stat(path).st_mtime)
    return {**found, "updated": max(times)} if times else found


def present_hash(source: str, run: RunDir) -> str | None:
    """Hash of the present code of a command, by the folder it was copied from; None if it is unknown."""
    return command_code.hash_of_source(source, run.path.parent.parent) if source else None
