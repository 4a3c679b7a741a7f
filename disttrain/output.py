"""Where a run's records go: the run directory a job gave, or a new one for a trainer started by hand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from disttrain.rundir import Attempt, RunDir, read_json_or_none
from disttrain.world import World

BY_HAND = "by-hand"
"""The sweep that runs started by hand belong to."""


@dataclass(frozen=True)
class Output:
    """A run directory and the attempt that writes to it."""

    run: RunDir
    attempt: Attempt

    @classmethod
    def of_job(cls, run_dir: Path, attempt: int) -> Output:
        run = RunDir(run_dir.resolve())
        return cls(run, run.attempt(attempt))

    @classmethod
    def by_hand(cls, run_dir: Path | None, config_file: Path, world: World) -> Output:
        """`run_dir` as given, or `runs/by-hand/<config>-<time>`; all ranks agree on rank 0's choice."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        chosen = run_dir or Path("runs") / BY_HAND / f"{config_file.stem}-{stamp}"
        chosen, number = world.gather((chosen, len(RunDir(chosen).attempts())))[0]
        return cls.of_job(chosen, number)

    def identity(self) -> dict[str, Any]:
        """The fields of `Metrics` that say whose they are."""
        planned = read_json_or_none(self.run.run_json) or {}
        return {
            "name": planned.get("name", self.run.name),
            "sweep": planned.get("sweep", self.run.sweep),
            "run_key": planned.get("run_key", BY_HAND),
        }
