"""Run directory of a trainer: given by its job, or created for a trainer started by hand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from disttrain.config.keys_and_defaults import Config, config_key, hash_values
from disttrain.records import collect_provenance
from disttrain.records.attempt import Outcome, RankError
from disttrain.records.json_files import read_json_or_none, write_json
from disttrain.records.masking import mask_config
from disttrain.records.metrics import Metrics
from disttrain.records.planned import RunRecord
from disttrain.records.provenance import Provenance
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.runtime.process_group import World

BY_HAND = "by-hand"
"""Sweep of runs started by hand."""


@dataclass(frozen=True)
class RunOutput:
    """A run directory, and the attempt that writes to it."""

    run: RunDir
    attempt: Attempt
    writes_outcome: bool = False
    """Whether this is rank 0 of a trainer started by hand, which has no agent to write `DONE` or `FAILED`."""

    @classmethod
    def of_job(cls, run_dir: Path, attempt: int) -> RunOutput:
        """The run directory of a job, and the attempt that the job's agent claimed."""
        run = RunDir(run_dir.resolve())
        return cls(run, run.attempt(attempt))

    @classmethod
    def by_hand(
        cls,
        run_dir: Path | None,
        config_file: Path,
        config: Config,
        world: World,
        recorded: dict[str, Any] | None = None,
    ) -> RunOutput:
        """A new attempt in `run_dir` or in `runs/by-hand/<config>-<time>`; every rank takes rank 0's choice.

        Rank 0 writes `run.json`, as `submit.py` does for a job, with the values `recorded` in place of
        `config` if they are given. Calls a collective.
        """
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        chosen = run_dir or Path("runs") / BY_HAND / f"{config_file.stem}-{stamp}"
        chosen, number = world.all_gather_object((chosen, len(RunDir(chosen).attempts())))[0]
        run = RunDir(chosen.resolve())
        output = cls(run, run.attempt(number), writes_outcome=world.rank == 0)
        if output.writes_outcome:
            values = mask_config(config.as_dict())[0] if recorded is None else recorded
            key = config_key(config) if recorded is None else hash_values(recorded)
            write_json(output.run.run_json, _plan_by_hand(output.run, values, key).model_dump(mode="json"))
            for stale in (run.stop, run.failed, run.done):  # of the previous attempt
                stale.unlink(missing_ok=True)
        return output

    def identity(self) -> dict[str, Any]:
        """The identifying fields of `Metrics`: name, sweep, run key."""
        planned = (
            read_json_or_none(self.run.run_json) or {}
        )  # absent on other machines without a shared file system
        return {
            "name": planned.get("name", self.run.name),
            "sweep": planned.get("sweep", self.run.sweep),
            "run_key": planned.get("run_key", BY_HAND),
        }

    def close(self, error: RankError | None, metrics: Metrics | None = None) -> None:
        """Write `DONE` or `FAILED` on rank 0 of a trainer started by hand; in a job the agent writes them."""
        if not self.writes_outcome:
            return
        cause, message = "finished", None
        if error:
            cause, message = error.cause, f"rank {error.rank}: {error.kind}: {error.message}"
        elif metrics and metrics.stop_cause:
            cause, message = metrics.stop_cause, f"at step {metrics.steps} of {metrics.steps_total}"
        outcome = Outcome(
            cause=cause,
            attempt=self.attempt.number,
            message=message,
            ended=datetime.now(UTC).isoformat(timespec="milliseconds"),
            retryable=False,
        )
        path = self.run.done if cause == "finished" else self.run.failed
        write_json(path, outcome.model_dump(mode="json"))


def _plan_by_hand(run: RunDir, config: dict[str, Any], key: str) -> RunRecord:
    made = Provenance.model_validate(collect_provenance.collect())
    return RunRecord(
        name=run.name,
        sweep=run.sweep,
        run_key=collect_provenance.run_key(key, made.code.hash),
        config_key=key,
        repeat=0,
        config=config,
        axes={},
        cluster="local",
        provenance=made,
    )
