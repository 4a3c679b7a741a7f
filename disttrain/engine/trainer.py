"""`Trainer`: the step, validation, checkpoints and metrics in a run directory, for a config or a script.

    with Trainer(model, optimizer, loss, steps=1000, batch_size=32) as trainer:
        trainer.load()
        batches = trainer.batches(dataset)
        while trainer.steps_done < trainer.steps:
            trainer.step(batches)
        trainer.save()

The script has its own model, loss, optimizer and data. It runs as one process, or on several ranks under
torchrun or `disttrain run -- script.py`. Run directory, records and report are those of any run.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from disttrain.checkpoint.folder import checkpoint_folder
from disttrain.checkpoint.resume import (
    ResumeSource,
    build_manifest,
    find_checkpoint,
    find_resume_source,
    refuse_later_checkpoint,
)
from disttrain.checkpoint.saver import CheckpointSaver
from disttrain.checkpoint.state import RandomState, Stateful, TrainState
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.data.source import sample_count
from disttrain.engine import script_config
from disttrain.engine.agreement import Agreement, refuse_between_averages
from disttrain.engine.auto_batch import resolve_batch_size
from disttrain.engine.layer_times import write_layer_times
from disttrain.engine.memory_estimate import resolve_strategy
from disttrain.engine.objective import OwnObjective
from disttrain.engine.spec import Collate, communication_of, facts_of, spec_of_config, spec_of_script
from disttrain.engine.step import Stepper, build_stepper, collections_by_hand, communicates
from disttrain.errors import ConfigError
from disttrain.models.hooks import hooks_of
from disttrain.records.checkpoint import Checkpoint, committed_path
from disttrain.records.dataset import DatasetRecord
from disttrain.records.exit_causes import StopCause
from disttrain.records.metrics import EvalPoint, Metrics
from disttrain.runtime import log
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import World
from disttrain.runtime.rank_heartbeat import heartbeat
from disttrain.runtime.run_output import RunOutput
from disttrain.runtime.stop_signals import StopRequests
from disttrain.telemetry.recorder import Recorder, ScriptWatch
from disttrain.telemetry.step_clock import OTHER
from disttrain.telemetry.steps import StepResult

_OWN_DATA = DatasetRecord(name="own")
B = TypeVar("B")
"""A batch: tensors, at any depth of tuples, lists and mappings."""


class Trainer(Generic[B]):
    """Trains a model of the caller. All ranks call the same methods in the same order.

    Parameters
    ----------
    model : moved to the rank's device; every rank starts with the weights of rank 0.
    optimizer : over the parameters of `model`, or a function from parameters to an optimizer, which a
        strategy that shards the parameters needs. The learning rates of its groups are the peaks of the
        schedule in `config["optim"]`, by default constant.
    loss : mean loss of a model over the samples of a batch, a scalar.
    steps : optimizer steps of the whole training, which is the length of the schedule.
    batch_size : samples of a batch on one rank.
    accumulation : batches of an optimizer step on one rank.
    run_dir : run directory, that of rank 0 on all ranks; by default that of the job, else of script and time.
    config : sections of the config, such as `{"parallel": {"strategy": "ddp"}}`.

    Raises
    ------
    ConfigError : a value or a combination of them is invalid, or the ranks do not have equal devices.
    """

    _watch: ScriptWatch | None = None
    """Heartbeats of a script; those of a config begin in `disttrain.__main__`."""
    _requests: StopRequests | None = None
    _final: Metrics | None = None
    _began = _closed = False
    steps_done = 0
    """Optimizer steps so far, those before a `load` included."""
    stop_cause: StopCause | None = None
    """The cause by which the ranks agreed to stop."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | script_config.OptimizerFactory,
        loss: Callable[[nn.Module, B], Tensor],
        *,
        steps: int,
        batch_size: int,
        accumulation: int = 1,
        run_dir: str | Path | None = None,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._exit = ExitStack()
        output = RunOutput.of_environment()
        try:
            script_config.whole_numbers(1, steps=steps, batch_size=batch_size, accumulation=accumulation)
            plan = BatchPlan(batch_size, accumulation, rank_info().size)
            full = script_config.config_of_script(
                {"kind": script_config.full_name(type(model))}, plan, config or {}, steps=steps
            )
            world = self._exit.enter_context(script_config.join_world(full, output))
            spec = spec_of_script(
                model, lambda parameters, _: script_config.choose_optimizer(optimizer, list(parameters)),
                OwnObjective(loss), full, plan, steps, world,
            )  # fmt: skip
            stepper = build_stepper(spec, world)
            output = script_config.script_output(run_dir, full, stepper.optimizer, world)
            self._record(full, stepper, output, build_manifest(full, _OWN_DATA, plan, output.attempt, world))
            self._watch = ScriptWatch(world.rank, self.recorder.clock, steps)
        except BaseException as error:
            if output:
                output.fail(error)
            if isinstance(error, ConfigError):  # all ranks raise it
                self._exit.close()
            raise

    @classmethod
    def of_config(cls, config: Config, output: RunOutput, world: World) -> Trainer[Any]:
        """The trainer of a config, at the run's checkpoint or at `checkpoint.start_from`. All ranks together.
        Raises `ConfigError`."""
        self = cls.__new__(cls)
        self._exit = ExitStack()
        chosen = resolve_strategy(config, world)  # first: the search of a batch size trains with it
        resolved, batch_fit = resolve_batch_size(config, chosen[0], output, world)
        spec = spec_of_config(resolved, world, chosen)
        assert spec.source is not None
        stepper = build_stepper(spec, world)
        manifest = build_manifest(config, spec.source.record, spec.plan, output.attempt, world)
        manifest = manifest.model_copy(update={"batch_fit": batch_fit})
        source = find_resume_source(
            config.checkpoint, output.run, output.attempt, manifest, spec.steps, world
        )
        self._record(config, stepper, output, manifest)
        heartbeat.communicates_while(communicates(stepper))
        if source is not None:
            self._restore(source)
        return self

    def _record(self, config: Config, stepper: Stepper, output: RunOutput, manifest: Checkpoint) -> None:
        """Begin the records of a run with this `stepper`. All ranks together."""
        spec, plan, world, strategy = stepper.spec, stepper.plan, stepper.world, stepper.strategy
        facts = facts_of(
            output, world, config, plan, spec.steps, stepper.cost,
            communication_of(strategy, stepper.model), spec.source,
            strategy=spec.config.parallel.strategy, strategy_reason=spec.strategy_reason,
            batch_fit=manifest.batch_fit, **stepper.precision_fields,
        )  # fmt: skip
        self.config, self.stepper = config, stepper
        self.model: nn.Module = stepper.unwrapped_model
        """The model without the wrapper of the strategy."""
        self.device, self.rank, self.world_size = world.device, world.rank, world.size
        self.run_dir: Path = output.run.path
        self.recorder = Recorder(output, world, config, facts)
        self.steps = spec.steps
        self._world, self._output, self._manifest = world, output, manifest
        self._folder = checkpoint_folder(config.checkpoint, output.run)
        self._random = RandomState(world.device)
        log.info(
            "start", model=config.model.kind, parameters=stepper.cost.parameters, steps=spec.steps,
            strategy=spec.config.parallel.strategy, reason=spec.strategy_reason, **stepper.precision_fields,
            device=str(world.device), world_size=world.size,
            batch=f"{plan.local} x {plan.accumulation} x {plan.world} = {plan.global_}",
        )  # fmt: skip

    def stop_on(self, requests: StopRequests) -> None:
        """Stop with a checkpoint once any rank has one of `requests`; before the first step."""
        self._requests = requests

    def batches(
        self, dataset: Dataset[Any], *, workers: int = 0, collate: Collate | None = None
    ) -> Iterator[B]:
        """The batches of this rank after `steps_done`, up to the last step of the training.

        Over all ranks, each epoch has every sample of the map-style `dataset` once, in an order that depends
        only on `train.seed`. A global batch is the same for any number of ranks, and after a `load`, which
        comes first, the order goes on. `workers` is the number of loader processes.
        """
        spec = self.stepper.spec
        batches = spec.batches(dataset, self.steps_done, self.device, workers, collate)
        return hooks_of(self.model).wrap_batches(batches, spec.plan.local, self.device)

    def step(self, batches: Iterator[B]) -> StepResult | None:
        """Train on the next `accumulation` batches, each of `batch_size` samples; None if `batches` ends, or
        if the ranks agreed to stop.

        `batches` is the result of the method of that name, or an iterator over a loader of the caller, such
        as `iter(loader)` with a `DistributedSampler`. Tensors in the result stay on the device. Time between
        two calls counts as `other` of the following step, but for `validate` and `metrics`.

        Raises `RuntimeError` after the last step or `close`, and `NonFinite` by `precision.on_non_finite`,
        which all ranks check together every `train.log_every` steps and after the last one.
        """
        if self._closed:
            raise RuntimeError("step() after close()")
        number = self.steps_done + 1
        if number > self.steps:
            raise RuntimeError(f"the training has steps={self.steps}, and all of them are done")
        if not self._began:
            # The iterator exists, and drew its seed; the dataset may draw more for the first batch.
            self._random.restart(self.steps_done, self.config.train.seed, self._world)
            first = next(batches, None)
            if first is None:
                return None
            self._begin(first)
            batches = itertools.chain([first], batches)
        self.stop_cause = self.stop_cause or self._agreement.boundary(self.steps_done)
        if self.stop_cause is not None:
            return None
        profiled = self.recorder.profiled
        try:
            with profiled.take(number, self.stepper.clock) if number in profiled.steps else nullcontext():
                result = self.stepper.step(number, batches)
        except StopIteration:  # also within an accumulation, whose gradients are then dropped
            self.stepper.strategy.drop_gradients(self.stepper.model, self.stepper.optimizer)
            return None
        self.steps_done = number
        self.recorder.step_done(result)
        (self._watch or heartbeat).step_done(number)
        if (every := self.config.train.gc_every) and number % every == 0:
            gc.collect()
        return result

    def validate(
        self, dataset: Dataset[Any], *, samples: int = 0, collate: Collate | None = None
    ) -> EvalPoint:
        """The mean loss over the map-style `dataset`, each sample on one rank; the loss of a batch counts by
        its samples.

        `samples` limits their number: the same ones each time, evenly spaced (0: all of them).
        """
        if not sample_count(dataset):
            raise ConfigError("validate() needs at least 1 sample; the dataset is empty")
        refuse_between_averages(self.stepper.strategy, self.steps_done, self.steps, "validate()")
        if not self._began:
            return self.stepper.validate(dataset, self.steps_done, samples, collate)
        with heartbeat.within("evaluation"), self.recorder.outside_steps():
            point = self.stepper.validate(dataset, self.steps_done, samples, collate)
            self.recorder.evaluated(point)
            self._agreement.validated(point)
        return point

    def save(self, *, wait: bool = True) -> Path:
        """Save model, optimizer, random state and records; the folder of the committed checkpoint.

        The folder `checkpoints` of the run directory keeps the newest `checkpoint.keep`, and the one with the
        lowest loss of a `validate` after the same step. Without `wait`, the checkpoint is written beside the
        following steps. Raises `RuntimeError` on all ranks if the checkpoint cannot be written, before the
        first step, or if the folder has a later step of an earlier attempt.
        """
        if not self._began:
            raise RuntimeError("save() follows the first step() of a Trainer")
        saver, step = self._saver, self.steps_done
        if saver.step == self._start_step:
            refuse_later_checkpoint(self._folder, self._start_step, self._world)
        refuse_between_averages(self.stepper.strategy, step, self.steps, "save()")
        if step > saver.step:
            self._agreement.check_gradients()
            self._agreement.save(step)
        if wait and saver.pending:
            with heartbeat.within("checkpoint"):
                saver.commit()
            if self._world.of_rank0(saver.committed_step) != step:
                raise RuntimeError(f"the checkpoint of step {step} was not written; the log has the reason")
        self.recorder.clock.switch(OTHER)
        return committed_path(saver.folder, step)

    def load(self, path: str | Path | None = None, *, model_only: bool = False) -> int:
        """Go on from the checkpoint folder `path`, by default the newest intact one of the run directory.

        Returns the steps done: 0 if the run directory has no checkpoint. With `model_only`, the weights alone
        are loaded, at any time. On as many ranks as saved it, the training goes on bit for bit.

        Raises `ConfigError` for a checkpoint of another model, of another global batch size, or beyond
        `steps`, or if the run directory has checkpoints and none can be restored; `RuntimeError` after the
        first step.
        """
        if self._began and not model_only:
            raise RuntimeError("load() precedes the first step() of a Trainer, but for model_only=True")
        source = find_checkpoint(
            path, self._folder, self._output.attempt, self._manifest, self.steps, self._world, model_only
        )
        if source is not None:
            self._restore(source)
        return self.steps_done

    def metrics(self) -> Metrics:
        """The metrics so far, over all ranks, as in `metrics.json`; after `close`, the final ones."""
        if self._final is not None:
            return self._final
        with self.recorder.outside_steps() if self._began else nullcontext():
            return self._world.of_rank0(self.recorder.current())

    def close(self) -> None:
        """Write the records of a training that ended; also the end of a `with` block.

        In an `except` or `finally` clause, the records are those of the error.
        """
        error = sys.exc_info()[1]
        self.__exit__(type(error) if error else None, error, None)

    def __enter__(self) -> Trainer[B]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed:
            return
        self._closed = True
        if self._watch is not None:
            self._watch.close()
        if isinstance(error, SystemExit) and not error.code:
            kind = error = trace = None
        try:
            if error is None:
                self._finish()
        except BaseException as failure:
            kind, error, trace = type(failure), failure, failure.__traceback__
            raise
        finally:
            if error is not None:  # recorded before anything that may block
                self._output.fail(error)
                self.recorder.abort()
            self._exit.__exit__(kind, error, trace)

    def _begin(self, batch: B) -> None:
        """Start the clock; `batch` is that of the first step. All ranks together."""
        self.stepper.prime(batch)
        self.stepper.clock = self.recorder.clock
        capture = self._state().capture
        self._start_step = self.steps_done
        self._saver = CheckpointSaver(
            self._folder, self.config.checkpoint, self._output.attempt, self.recorder.timed_world, capture,
            self._manifest, self.steps_done,
        )  # fmt: skip
        self._agreement = Agreement(
            self.recorder, self._saver, self.steps, self.steps_done, self._requests,
            self.stepper.strategy.replicas_agree,
        )  # fmt: skip
        if self.config.train.gc_every:
            self._exit.enter_context(collections_by_hand())
        if self._watch is None:
            heartbeat.enter("step")
        self.recorder.start()
        self._began = True

    def _finish(self) -> None:
        """Write the records of a training that ended without an error. All ranks together."""
        if not self._began:
            self.recorder.start()
        elif self.stop_cause is None:
            self._agreement.end(self.steps_done)
        heartbeat.enter("finish")
        if self.config.telemetry.layer_passes and self.stop_cause is None:
            write_layer_times(self.stepper, self.stepper.spec.example(), self.recorder)
        if self._began:
            step, failed = self._saver.committed_step, self._saver.failed
            self.recorder.metrics_fields |= {"checkpoint_step": step, "checkpoints_failed": failed}
        self.recorder.report_of(self.model)
        script_stops = self._watch is not None and self.steps_done < self.steps
        cause = self._output.stop_cause() if script_stops else self.stop_cause
        metrics = self._final = self.recorder.finish(cause)
        log.info(cause or "finished", step=metrics.steps, samples_per_s=metrics.samples_per_s or 0.0)
        self._output.close(None, metrics)

    def _state(self) -> TrainState:
        stepper, mesh = self.stepper, self.stepper.spec.mesh
        parts: list[Stateful] = [self.recorder, stepper.precision, stepper.strategy, self._random]
        holders = mesh.stage_ranks if mesh.pipeline > 1 else None
        return TrainState(self.model, stepper.optimizer, parts, self._world, holders)

    def _restore(self, source: ResumeSource) -> None:
        """Load the state of `source`, or its model alone. All ranks together."""
        self.recorder.origin = source
        step = self._state().restore(source)
        if not source.only_model:
            self.steps_done = step
            self.recorder.metrics_fields["resumed_step"] = step
