"""Follow-ups, runs that a run submits: `n2.done` of `job.on_done`, and `n2.step-00000100` of
`job.on_checkpoint`, in the sweep of run `n2`. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir

DONE = ".done"
_LAST_S = 20.0
"""Longest wait, in seconds, for the submissions after the last checkpoint of a start."""


def parent(run: RunDir) -> str | None:
    """The name of the run that a run follows, by its `run.json`; None if it follows none."""
    kind = run.name.rpartition(".")[2]
    if kind != DONE[1:] and not kind.startswith("step-"):  # so that few records are read
        return None
    followed: str | None = (read_json_or_none(run.run_json) or {}).get("follows")
    return followed


def checkpoint_command(run: RunDir) -> list[str] | None:
    """The command that submits a run for each checkpoint of this one, now and as they come; None where
    `job.on_checkpoint` is not set."""
    config = (read_json_or_none(run.run_json) or {}).get("config") or {}
    if not (config.get("job") or {}).get("on_checkpoint"):
        return None
    return [sys.executable, "-m", "jobs.submission.checkpoint_runs", str(run.path)]


def submit_last(run: RunDir) -> None:
    """Submit the runs of `job.on_checkpoint` that are missing. If this takes longer than `_LAST_S` seconds,
    they are left to the next start."""
    if (command := checkpoint_command(run)) is not None:
        try:
            subprocess.run([*command, "--once"], stdin=subprocess.DEVNULL, timeout=_LAST_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"runs of job.on_checkpoint: {error}", flush=True)
