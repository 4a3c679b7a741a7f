"""Checkpoints of a `Trainer`: find one, continue from it, save the next."""

from __future__ import annotations

from pathlib import Path

from disttrain.checkpoint.folder import checkpoint_folder
from disttrain.checkpoint.manifest import build_manifest, log_inexact_resume
from disttrain.checkpoint.resume import ResumeSource, named_checkpoint, newest_intact
from disttrain.checkpoint.saver import CheckpointSaver
from disttrain.checkpoint.state import RandomState, Stateful, TrainState
from disttrain.config.batch_plan import BatchPlan
from disttrain.engine.step import Stepper
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import Checkpoint
from disttrain.records.dataset import DatasetRecord
from disttrain.records.run_directory import checkpoint_steps
from disttrain.runtime import heartbeat
from disttrain.runtime.process_group import World
from disttrain.telemetry.run import RunTelemetry
from disttrain.telemetry.step_clock import CHECKPOINT, OTHER
from disttrain.telemetry.telemetry_state import TelemetryState


class TrainerCheckpoints:
    """The checkpoints of one `Trainer`. All ranks call the same methods in the same order."""

    def __init__(self, telemetry: RunTelemetry, stepper: Stepper, random: RandomState, steps: int) -> None:
        self._telemetry = telemetry
        self._stepper = stepper
        self._random = random
        self._steps = steps
        self._config, self._world = telemetry.config, telemetry.world
        self._folder = checkpoint_folder(self._config.checkpoint, telemetry.run)
        self._origin: ResumeSource | None = None
        self._saver: CheckpointSaver | None = None

    def find(self, path: str | Path | None, *, model_only: bool) -> ResumeSource | None:
        """The checkpoint folder `path`, or the newest intact one of the run directory; None without one."""
        if path is not None:
            found = named_checkpoint(str(path), "path", self._world)
        elif (newest := newest_intact(self._folder, self._telemetry.attempt, self._world)) is not None:
            found = newest
        else:
            return None
        return ResumeSource(**vars(found), only_model=model_only, same_run=path is None)

    def restore(self, origin: ResumeSource) -> int:
        """Load the state of `origin`, or its model alone; the step of the checkpoint.

        Raises `ConfigError` for a checkpoint of another global batch, or beyond the last step.
        """
        if not origin.only_model:
            refuse_other_plan(origin, self._stepper.plan, self._steps)
            log_inexact_resume(origin, self._manifest())
        step = self._state(origin).restore(origin)
        if not origin.only_model:
            self._origin = origin
            self._telemetry.metrics_fields["resumed_step"] = step
        return step

    def saver(self) -> CheckpointSaver:
        """The saver of this attempt. Raises `RuntimeError` if an earlier attempt has a later checkpoint."""
        if self._saver is None:
            started = self._origin.manifest.step if self._origin else 0
            refuse_later_checkpoint(self._folder, started, self._world)
            resumed = started if self._origin and self._origin.same_run else 0
            self._saver = CheckpointSaver(
                self._folder, self._config.checkpoint, self._telemetry.attempt, self._telemetry.timed_world,
                self._state(self._origin).capture, self._manifest(), resumed,
            )  # fmt: skip
        return self._saver

    def save(self, step: int, loss: float | None) -> None:
        """Save and commit the checkpoint of `step`, whose validation has this loss.

        Raises `RuntimeError` on all ranks if the checkpoint is not written.
        """
        saver, clock = self.saver(), self._telemetry.clock
        clock.switch(CHECKPOINT)
        with heartbeat.within("checkpoint"):
            saver.save(step, loss)
            saver.commit()
        if self._world.all_gather_object(saver.committed_step)[0] != step:
            raise RuntimeError(f"the checkpoint of step {step} was not written; the log has the reason")
        clock.switch(OTHER)

    def close(self) -> None:
        """Close the saver, and record its checkpoints in the metrics."""
        if self._saver is not None:
            self._saver.close()
            self._telemetry.checkpointed(self._saver.committed_step, self._saver.failed)

    def _manifest(self) -> Checkpoint:
        unknown = DatasetRecord(name="own", version=None, sha256=None, train_samples=0, valid_samples=0)
        attempt, plan = self._telemetry.attempt, self._stepper.plan
        return build_manifest(self._config, unknown, plan, attempt, self._world)

    def _state(self, origin: ResumeSource | None) -> TrainState:
        stepper = self._stepper
        telemetry = TelemetryState(self._telemetry, origin)
        parts: list[Stateful] = [telemetry, stepper.precision, stepper.strategy, self._random]
        return TrainState(stepper.unwrapped_model, stepper.optimizer, parts, self._world)


def refuse_later_checkpoint(folder: Path, started: int, world: World) -> None:
    """Raise `RuntimeError` if `folder` has a checkpoint after step `started`, with which this attempt began.

    Retention keeps the newest steps, so that it would delete the checkpoints of this attempt. All ranks
    together.
    """
    found = checkpoint_steps(folder)[:1] if world.rank == 0 else []
    newest = max(world.all_gather_object(found)[0], default=0)
    if newest > started:
        raise RuntimeError(
            f"{folder} has a checkpoint of step {newest} of an earlier attempt; call load() before the first "
            "step, or give another run_dir"
        )


def refuse_other_plan(found: ResumeSource, plan: BatchPlan, steps: int) -> None:
    """Raise `ConfigError` for a checkpoint of another global batch, or beyond the last step."""
    manifest = found.manifest
    if manifest.global_batch_size != plan.global_:
        raise ConfigError(
            f"{found.path} was trained with a global batch of {manifest.global_batch_size} samples, this "
            f"Trainer has {plan.global_}; load(path, model_only=True) takes the model alone"
        )
    if manifest.step > steps:
        raise ConfigError(f"{found.path} is of step {manifest.step}, beyond steps={steps}")
