"""Run directory of a trainer, given by its job or created for one started by hand, and record of its error.

Imports without torch.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from disttrain.errors import ConfigError, NodeFault, NonFinite, message_of
from disttrain.records import collect_provenance
from disttrain.records.attempt import Outcome, RankError
from disttrain.records.exit_causes import Cause, StopCause, unplanned_steps
from disttrain.records.json_files import forbid_world_writes, read_json_or_none, write_json
from disttrain.records.metrics import Metrics
from disttrain.records.planned import Provenance, RunRecord
from disttrain.records.run_directory import ATTEMPT, RUN_DIR, Attempt, RunDir, attempt_of_job
from disttrain.runtime import log
from disttrain.runtime.process import rank_info

if TYPE_CHECKING:
    from disttrain.runtime.process_group import World

BY_HAND = "by-hand"
"""Sweep of runs started by hand."""

_HOST_ALLOCATION = "DefaultCPUAllocator: can't allocate memory"
"""Message of PyTorch's `RuntimeError` where the host has no memory left, or `ulimit -v` is reached."""
_CAUSES: dict[type[BaseException], Cause] = {
    ConfigError: "refused",
    KeyboardInterrupt: "cancelled",
    NodeFault: "launch_failed",
    NonFinite: "non_finite",
}


@dataclass(frozen=True)
class RunOutput:
    """A run directory, and the attempt that writes to it."""

    run: RunDir
    attempt: Attempt
    record: RunRecord | None = None
    """`run.json`, for rank 0 of a trainer started by hand, which has no agent to write `DONE` or `FAILED`."""

    @classmethod
    def of_job(cls, run_dir: Path, attempt: int) -> RunOutput:
        """The run directory of a job, and the attempt that the job's agent claimed."""
        return cls(RunDir(run_dir.resolve()), attempt_of_job(run_dir, attempt))

    @classmethod
    def of_environment(cls) -> RunOutput | None:
        """The run directory and attempt of the job that started this script of the user; None without a
        job."""
        run_dir = os.environ.get(RUN_DIR)
        return cls.of_job(Path(run_dir), int(os.environ[ATTEMPT])) if run_dir else None

    @classmethod
    def by_hand(
        cls,
        run_dir: Path | None,
        file: Path,
        config: dict[str, Any],
        key: str,
        world: World,
        *,
        script: bool = False,
        secrets: Sequence[str] = (),
    ) -> RunOutput:
        """A new attempt in `run_dir` or in `runs/by-hand/<file>-<time>`; every rank takes rank 0's choice.
        `file` has the config, or is the `script` of a training loop of the user.

        Rank 0 writes `run.json`, as `disttrain` does for a job, masked at the names of `secrets`. Calls a
        collective.
        """
        forbid_world_writes()
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        chosen = run_dir or Path("runs") / BY_HAND / f"{file.stem}-{stamp}"
        chosen, number = world.of_rank0((chosen, len(RunDir(chosen).attempts())))
        run = RunDir(chosen.resolve())
        if world.rank:
            return cls(run, run.attempt(number))
        collected = collect_provenance.collect(file if script else None)
        made = Provenance.model_validate(collect_provenance.without_secrets(collected, secrets))
        record = RunRecord(
            name=run.name,
            sweep=run.sweep,
            run_key=collect_provenance.run_key(key, made.code.hash or made.code.git_commit or ""),
            config_key=key,
            repeat=None,
            config=config,
            axes={},
            cluster=None,
            provenance=made,
        )
        write_json(run.run_json, record)
        for stale in (run.stop, run.failed, run.done):
            stale.unlink(missing_ok=True)
        return cls(run, run.attempt(number), record)

    def identity(self) -> dict[str, Any]:
        """The identifying fields of `Metrics`: name, sweep, run key."""
        if self.record is not None:
            planned = self.record.model_dump()
        else:  # without a shared file system, absent on other machines
            planned = read_json_or_none(self.run.run_json) or {}
        defaults = {"name": self.run.name, "sweep": self.run.sweep, "run_key": BY_HAND}
        return {name: planned.get(name, default) for name, default in defaults.items()}

    def stop_cause(self) -> StopCause | None:
        """The cause for which a script was requested to stop."""
        if self.run.stop.exists():
            return "stopped"
        cause = (read_json_or_none(self.attempt.stop) or {}).get("cause")
        return cause if cause in get_args(StopCause) else None

    @contextmanager
    def recorded_if_it_fails(self) -> Iterator[None]:
        """Record an error of this block as that of a training loop: the cause, and by hand `FAILED`."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Record the error that ends this rank."""
        record = record_failure(error, rank_info().rank, self.attempt)
        with suppress(OSError):  # a full disk must not replace the error
            self.close(record)

    def close(self, error: RankError | None, metrics: Metrics | None = None) -> None:
        """Write `DONE` or `FAILED` on rank 0 of a trainer started by hand; in a job the agent writes them."""
        if self.record is None:
            return
        cause, message = "finished", None
        if error:
            cause, message = error.cause, f"rank {error.rank}: {error.kind}: {error.message}"
        elif metrics and metrics.stop_cause:
            cause, message = metrics.stop_cause, f"at step {metrics.steps} of {metrics.steps_total}"
        elif metrics:
            message = unplanned_steps(metrics.steps, metrics.steps_total)
        outcome = Outcome(
            cause=cause,
            attempt=self.attempt.number,
            message=message,
            ended=datetime.now(UTC).isoformat(timespec="milliseconds"),
            retryable=False,
        )
        path = self.run.done if cause == "finished" else self.run.failed
        write_json(path, outcome)


def record_failure(error: BaseException, rank: int, attempt: Attempt | None = None) -> RankError:
    """Describe `error`, raised by `rank` now, and write the record to the folder of `attempt` unless the file
    exists.

    The first record has the time of the failure, by which the cause of the attempt is chosen. An error of the
    file system goes to the log. The record of a `NodeFault` names a rank of the faulty node.
    """
    record = RankError(
        rank=error.rank if isinstance(error, NodeFault) else rank,
        time=time.time(),
        kind=type(error).__name__,
        message=message_of(error),
        cause=_cause(error),
        traceback="".join(traceback.format_exception(error)),
    )
    try:
        if attempt is not None and not attempt.error(rank).exists() and not attempt.is_replaced():
            write_json(attempt.error(rank), record)
    except OSError as problem:
        log.error("the failure is not recorded", problem=message_of(problem))
    return record


def _cause(error: BaseException) -> Cause:
    for kind, cause in _CAUSES.items():
        if isinstance(error, kind):
            return cause
    import torch

    no_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return "out_of_memory" if no_memory or _HOST_ALLOCATION in str(error) else "crashed"
