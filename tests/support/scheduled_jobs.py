"""A run as a job of `tests.support.scheduler`: planned, launched, ended, and the files that it left."""

from __future__ import annotations

import subprocess
from pathlib import Path

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.core import hook
from tests.support.jobs import WITHIN_S, FakeScheduler, starts, submit, sweep_plan, wait_until
from tests.support.scheduler import Scheduler


def planned(root: Path, mode: str, nodes: int = 1) -> Scheduler:
    """A submitted run whose ranks are the stand-in of `tests/support/standin.sh` in this mode."""
    submit(sweep_plan("a", nodes=nodes, mode=mode, on_end="true"), FakeScheduler(), root)
    return Scheduler(root / "scheduler", RunDir(root / "demo" / "a"), nodes)


def launched(job: Scheduler, count: int = 1) -> None:
    """Wait until the launcher has started this many times."""
    wait_until(lambda: len(starts(job.run)) == count)


def ended(process: subprocess.Popen[str]) -> int:
    """Wait for the end of an agent; its exit code."""
    process.communicate(timeout=WITHIN_S)
    return process.returncode


def hook_calls(job: Scheduler) -> list[str]:
    """Causes of the failures about which the hook was called."""
    records = [read_json(path) for path in hook.records_of(job.run.path.parent).glob("*.json")]
    return [failure["cause"] for record in records for failure in record["failed"]]


def change_mode(run: RunDir, mode: str) -> None:
    """Let later starts of the stand-in act in this mode."""
    record = read_json(run.run_json)
    record["config"]["job"]["env"]["STANDIN"] = mode
    write_json(run.run_json, record)


def written(run: RunDir) -> dict[str, bytes]:
    """All that attempts share, and the records of all of them."""
    paths = [path for path in run.path.glob("*") if path.is_file()] + list(
        run.path.glob("submissions/*.json")
    )
    paths += run.path.glob("attempts/*/attempt.json")
    return {str(path): path.read_bytes() for path in paths if path.name != "starts"}
