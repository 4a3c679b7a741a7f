"""`Trainer`: the trainer's step, validation, checkpoints and metrics for a script of one's own.

    with Trainer(model, optimizer, loss, steps=1000, batch_size=32) as trainer:
        trainer.load()
        batches = trainer.batches(dataset)
        while trainer.steps_done < trainer.steps:
            trainer.step(batches)
        trainer.save()

The script has its own model, loss, optimizer and data. It runs as one process, or on several ranks under
torchrun or `submit.py run -- script.py`. Run directory, records and report are those of any run.
"""

from __future__ import annotations

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

from disttrain.checkpoint.state import RandomState
from disttrain.config.batch_plan import BatchPlan
from disttrain.data.source import sample_count
from disttrain.engine.non_finite import NonFinitePolicy
from disttrain.engine.objective import OwnObjective
from disttrain.engine.spec import Collate, spec_of_script
from disttrain.engine.step import build_stepper
from disttrain.engine.trainer_checkpoints import TrainerCheckpoints
from disttrain.engine.trainer_config import trainer_config
from disttrain.engine.trainer_setup import (
    OptimizerFactory,
    choose_optimizer,
    find_run,
    join_world,
    recorded_if_it_fails,
    refuse_between_averages,
    start_telemetry,
)
from disttrain.errors import ConfigError
from disttrain.parallel.base import build_strategy
from disttrain.records.checkpoint import committed_path
from disttrain.records.metrics import EvalPoint, Metrics
from disttrain.runtime import heartbeat
from disttrain.runtime.rank_failure import record_failure
from disttrain.runtime.rank_info import rank_info
from disttrain.telemetry.script_watch import ScriptWatch
from disttrain.telemetry.step_result import StepResult

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
    run_dir : run directory, that of rank 0 on all ranks; by default `runs/by-hand/<script>-<time>`. A job of
        `submit.py` has its own, which is used instead.
    config : sections of the config (docs/configuration.md), such as `{"parallel": {"strategy": "ddp"}}`.

    Raises
    ------
    ConfigError : a value or a combination of them is invalid, or the ranks do not have equal devices.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | OptimizerFactory,
        loss: Callable[[nn.Module, B], Tensor],
        *,
        steps: int,
        batch_size: int,
        accumulation: int = 1,
        run_dir: str | Path | None = None,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._exit = ExitStack()
        with recorded_if_it_fails(self._exit):
            for name, value in (("steps", steps), ("batch_size", batch_size), ("accumulation", accumulation)):
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ConfigError(f"{name}={value!r}: must be a whole number of at least 1")
            plan = BatchPlan(batch_size, accumulation, rank_info().size)
            self._config = trainer_config(type(model), plan, steps, config or {}, rank_info())
            self.steps = steps
            self.steps_done = 0
            """Optimizer steps so far, those before a `load` included."""
            self._world = self._exit.enter_context(join_world(self._config))
            self._plan = plan
            spec = spec_of_script(
                model,
                lambda parameters, _: choose_optimizer(optimizer, list(parameters)),
                OwnObjective(loss),
                self._config,
                plan,
                steps,
                self._world,
            )
            strategy = build_strategy(spec.config.parallel.strategy, spec.config.parallel)
            self._stepper = build_stepper(spec, strategy, self._world)
            self._output = find_run(run_dir, self._config, self._stepper.optimizer, self._world)
            with self._output.recorded_if_it_fails():
                self._random = RandomState(self._world.device)
                self._telemetry = start_telemetry(self._output, self._config, self._stepper)
                self._stepper.clock = self._telemetry.clock
                self._watch = ScriptWatch(self._world.rank, self._telemetry.clock, steps)
                self._non_finite = NonFinitePolicy(self._config.precision, self._telemetry.skipped_steps)
                self._checkpoints = TrainerCheckpoints(self._telemetry, self._stepper, self._random, steps)
                self._validated: EvalPoint | None = None
                self._began = False
                self._closed = False
                self._final: Metrics | None = None

    @property
    def model(self) -> nn.Module:
        """The model without the wrapper of the strategy."""
        return self._stepper.unwrapped_model

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._world.device

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._world.size

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self._output.run.path

    def batches(
        self, dataset: Dataset[Any], *, workers: int = 0, collate: Collate | None = None
    ) -> Iterator[B]:
        """The batches of this rank after `steps_done`, up to the last step of the training.

        Over all ranks, each epoch has every sample of the map-style `dataset` once, in an order that depends
        only on `train.seed`. A global batch is the same for any number of ranks, and after a `load`, which
        comes first, the order goes on. `workers` is the number of loader processes.
        """
        return self._stepper.spec.batches(dataset, self.steps_done, self.device, workers, collate)

    def step(self, batches: Iterator[B]) -> StepResult | None:
        """Train on the next `accumulation` batches, each of `batch_size` samples; None if `batches` ends.

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
            self._random.restart(self.steps_done, self._config.train.seed, self._world)
            first = next(batches, None)
            if first is None:
                return None
            self._begin(first)
            batches = itertools.chain([first], batches)
        profiled = self._telemetry.profiled
        try:
            with profiled.take(number, self._stepper) if number in profiled.steps else nullcontext():
                result = self._stepper.step(number, batches)
        except StopIteration:  # also within an accumulation, whose gradients are then dropped
            self._stepper.strategy.drop_gradients(self._stepper.model, self._stepper.optimizer)
            return None
        self.steps_done = number
        self._telemetry.step_done(result)
        self._watch.step_done(number)
        last = number == self.steps
        if last or number % self._config.train.log_every == 0:
            self._end_if_not_finite(wait=last)
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
        refuse_between_averages(self._stepper.strategy, self.steps_done, "validate()")
        if not self._began:
            return self._stepper.validate(dataset, self.steps_done, samples, collate)
        with heartbeat.within("evaluation"), self._telemetry.outside_steps():
            self._validated = self._stepper.validate(dataset, self.steps_done, samples, collate)
            self._telemetry.evaluated(self._validated)
        return self._validated

    def save(self) -> Path:
        """Save model, optimizer, random state and records; the folder of the committed checkpoint.

        The folder `checkpoints` of the run directory keeps the newest `checkpoint.keep`, and the one with the
        lowest loss of a `validate` after the same step. Raises `RuntimeError` on all ranks if the checkpoint
        cannot be written, before the first step, or if the folder has a later step of an earlier attempt.
        """
        if not self._began:
            raise RuntimeError("save() follows the first step() of a Trainer")
        saver, step = self._checkpoints.saver(), self.steps_done
        refuse_between_averages(self._stepper.strategy, step, "save()")
        if step > saver.step:
            self._end_if_not_finite(wait=True)
            point = self._validated
            self._checkpoints.save(step, point.loss if point is not None and point.step == step else None)
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
        origin = self._checkpoints.find(path, model_only=model_only)
        if origin is not None:
            step = self._checkpoints.restore(origin)
            if not model_only:
                self.steps_done = step
        return self.steps_done

    def metrics(self) -> Metrics:
        """The metrics so far, over all ranks, as in `metrics.json`; after `close`, the final ones."""
        if self._final is not None:
            return self._final
        with self._telemetry.outside_steps() if self._began else nullcontext():
            return self._of_rank0(self._telemetry.current())

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
        self._watch.close()
        if isinstance(error, SystemExit) and not error.code:
            kind = error = trace = None
        if error is None:
            if not self._began:
                self._telemetry.start()
            self._checkpoints.close()
            self._final = self._of_rank0(self._telemetry.finish())
            self._output.close(None, self._final)
        else:
            record = record_failure(error, self._world.rank, self._output.attempt)
            self._telemetry.abort()
            self._output.close(record)
        self._exit.__exit__(kind, error, trace)

    def _begin(self, batch: B) -> None:
        """Start the clock; `batch` is that of the first step."""
        self._stepper.prime(batch)
        self._telemetry.start()
        self._began = True

    def _of_rank0(self, metrics: Metrics) -> Metrics:
        """The metrics of rank 0, which alone has the history of earlier attempts. All ranks together."""
        shared: Metrics = self._world.all_gather_object(metrics if self._world.rank == 0 else None)[0]
        return shared

    def _end_if_not_finite(self, wait: bool) -> None:
        """Raise `NonFinite` by `precision.on_non_finite`. All ranks together."""
        self._non_finite.check(self._world.all_reduce_max(self._non_finite.own_view(wait)))
