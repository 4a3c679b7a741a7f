"""`Stepper`: the parallel model and its optimizer step, without files and without telemetry.

Micro-batches in, updated parameters out, every instant assigned to a phase of the clock.
"""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from disttrain.checkpoint.state import drop_gradients, preserve_state
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.sections.model import DataConfig
from disttrain.data.loader import make_loader, to_device
from disttrain.engine.spec import Collate, TrainSpec, uncounted
from disttrain.models.flops import ModelCost, count_cost
from disttrain.models.hooks import hooks_of
from disttrain.optim.optimizer import learning_rates, set_learning_rate, set_lr_scales
from disttrain.optim.precision import Precision, RunningStatistics, build_precision
from disttrain.parallel.base import Strategy, build_strategy
from disttrain.parallel.broadcast import broadcast_buffers
from disttrain.records.metrics import EvalPoint
from disttrain.runtime.device import seed_all
from disttrain.runtime.fully_shard_hooks import compute_device
from disttrain.runtime.process_group import World
from disttrain.runtime.rank_heartbeat import heartbeat
from disttrain.telemetry.step_clock import (
    COMM,
    COMMUNICATION,
    COMPUTE,
    INPUT,
    OPTIMIZER,
    OTHER,
    PHASE_OF_DIMENSION,
    StepClock,
    control_sync,
    make_clock,
)
from disttrain.telemetry.steps import StepResult
from disttrain.transforms import transforms_of
from disttrain.transforms.compilation import compiling


def build_stepper(spec: TrainSpec, world: World) -> Stepper:
    """Build model, transforms, parallel model, precision and optimizer of `spec`. All ranks together. The
    caller closes the steps of the clock. Raises `ConfigError`."""
    config, device = spec.config, world.device
    strategy = build_strategy(config.parallel.strategy, config.parallel)
    transforms = transforms_of(config, device)
    if spec.source is None:
        model = spec.make_model().to(device)
        for value in itertools.chain(model.parameters(), model.buffers()):
            world.broadcast(value.detach())
    else:
        seed_all(config.train.seed)  # the same weights on every rank
        model = strategy.build(spec.make_model, world)
    precision, precision_fields = build_precision(config.precision, device, hooks_of(model))
    strategy.autocast_dtype = precision.autocast_dtype
    if spec.source is None:
        cost = uncounted(model)
    else:
        cost = count_cost(model, spec.source.train[0][0], device, precision.autocast_dtype)
        seed_all(config.train.seed + 1 + world.rank)  # other dropout on every rank
    for transform in transforms:
        model = transform(model)
    model = strategy.apply(model, spec.mesh, world)
    optimizer = spec.make_optimizer(strategy.parameters(model), strategy.unwrap(model))
    clock = make_clock(device)
    clock.start()
    return Stepper(spec, strategy, world, model, optimizer, precision, clock, cost, precision_fields)


@dataclass(eq=False)
class Stepper:
    """Runs the optimizer steps of a parallel model; made by `build_stepper`. All ranks call the same methods
    in the same order."""

    spec: TrainSpec
    strategy: Strategy
    world: World
    model: nn.Module
    """The result of `Strategy.apply`."""
    optimizer: torch.optim.Optimizer
    precision: Precision
    clock: StepClock
    cost: ModelCost
    precision_fields: dict[str, str]
    """Precision and its reason as fields of `Metrics`."""
    plan: BatchPlan = field(init=False)

    def __post_init__(self) -> None:
        spec, model = self.spec, self.model
        self.plan = spec.plan
        optim = spec.config.optim
        if spec.source is None:  # the rates of a script's optimizer are the peaks
            optim = optim.model_copy(update={"lr": set_lr_scales(self.optimizer)})
        self._rates = learning_rates(optim, spec.steps, self.plan.global_)
        self._device = compute_device(model)
        self._model_hooks = hooks_of(self.unwrapped_model)
        checks = self.precision.checks_gradients
        self._statistics = RunningStatistics(self.unwrapped_model) if checks else None
        this = weakref.proxy(self)  # a reference cycle would keep the model beyond its process group
        self.strategy.time_communication(
            model, lambda dimension: control_sync(this.clock, PHASE_OF_DIMENSION[dimension])
        )

    @property
    def unwrapped_model(self) -> nn.Module:
        """The model without its distributed wrapper."""
        return self.strategy.unwrap(self.model)

    def step(self, step: int, batches: Iterator[Any]) -> StepResult:
        """Run optimizer step `step` (1 is the first) on the next micro-batches."""
        self._model_hooks.on_step(step)
        self.strategy.on_step(step)
        if self._statistics is not None:
            self._statistics.keep()
        loss = (self._run_schedule if self.strategy.runs_schedule else self._accumulate)(batches)
        self.clock.switch(OPTIMIZER)
        grad_norm, skipped = self._update(step)
        if self.strategy.averages_replicas(step, last=step == len(self._rates)):
            self.clock.switch(COMM)
            self.strategy.average_replicas(self.model, self.optimizer)
        self.clock.switch(OTHER)
        reason = self.strategy.exposed_comm_reason()
        marks = self.clock.step
        return StepResult(step, loss, self._rates[step - 1], grad_norm, skipped, reason, marks=marks)

    def prime(self, batch: Any) -> None:
        """Run passes without effect: the `priming_passes` of the strategy, at least one if the model compiles
        in its first pass.

        All ranks together, before the first step of every start, fresh or resumed.
        """
        config = self.spec.config
        with compiling(config.compile, config.train.attention):
            for _ in range(max(self.strategy.priming_passes, int(config.compile.scope != "none"))):
                with preserve_state(self.model, self._device):
                    if self.strategy.runs_schedule:
                        self._run_schedule(itertools.repeat(batch))
                    else:
                        self._loss(self._load(iter([batch]))).backward()

    def validate(
        self, dataset: Dataset[Any], step: int, samples: int = 0, collate: Collate | None = None
    ) -> EvalPoint:
        """Validate after `step` on `samples` of `dataset` (0: all of them), each on one rank. All ranks
        together.

        All ranks take the buffers of rank 0, such as running statistics of batch norm: a checkpoint holds
        them, and DDP broadcasts them before the next step anyway.
        """
        began = time.monotonic()
        model, strategy, mesh, world = self.model, self.strategy, self.spec.mesh, self.world
        broadcast_buffers(model, world)
        available = len(dataset)  # type: ignore[arg-type]
        count, size = min(samples or available, available), self.plan.local
        # a constant stride covers the whole split with a limited number of samples, the same each time
        chosen = [i * available // count for i in range(count)][mesh.data_rank :: mesh.data_size]
        batches = [chosen[at : at + size] for at in range(0, len(chosen), size)]
        counted = len(batches)
        if strategy.gathers_parameters:  # every forward pass is a collective
            largest = -(-count // mesh.data_size)
            batches += [[0]] * (-(-largest // size) - counted)
        tally = torch.zeros(3, dtype=torch.float64, device=world.device)
        was_training = model.training
        model.eval()
        with strategy.evaluation(model), self.precision.autocast():
            loader = make_loader(dataset, batches, DataConfig(), world.device, collate=collate)
            for number, batch in enumerate(loader):
                batch_tally = strategy.batch_tally(model, to_device(batch, world.device), self.spec.objective)
                if number < counted:
                    tally += batch_tally
                heartbeat.progress()
        model.train(was_training)
        loss, metrics = self.spec.objective.metrics(world.all_reduce(tally))
        elapsed_s = time.monotonic() - began
        return EvalPoint(step=step, loss=loss, metrics=metrics, samples=count, elapsed_s=elapsed_s)

    def isolated_pass(self, batch: Any, mark: Callable[[], None]) -> None:
        """Run a forward and a backward pass without communication and without effect.

        `mark` is called when each begins, and after the last.
        """
        with (
            preserve_state(self.model, self._device),
            self.strategy.no_comm(self.model),
            drop_gradients(self.model),
            self._model_hooks.uncounted(),
        ):
            batch = self._load(iter([batch]))
            mark()
            loss = self._loss(batch)
            mark()
            loss.backward()
            mark()

    def _accumulate(self, batches: Iterator[Any]) -> Tensor:
        """Run the passes of the step's micro-batches one after another; the step's loss. The last one reduces
        the gradients over ranks."""
        losses = []
        for number in range(1, self.plan.accumulation + 1):
            self.clock.switch(INPUT)
            batch = self._load(batches)
            self.clock.switch(COMPUTE)
            last = number == self.plan.accumulation
            with self.strategy.micro_step(self.model, last):
                loss = self._loss(batch)
                if last:
                    self.strategy.on_exposed_communication(loss, lambda: self.clock.switch(COMM))
                self.precision.backward(loss)
            losses.append(loss.detach())
            del loss  # frees the graph before the next one is built
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    def _run_schedule(self, batches: Iterator[Any]) -> Tensor:
        """Run the passes of the step's micro-batches in the order of the strategy's schedule; the step's
        loss."""
        self.clock.switch(INPUT)
        loaded = [self._load(batches) for _ in range(self.plan.accumulation)]
        self.clock.switch(COMM)
        this = weakref.proxy(self)  # the schedule keeps both functions
        total = self.strategy.run_schedule(
            self.model,
            loaded,
            lambda model, batch: this.precision.scaled(this._share_of_loss(model, batch)),
            lambda: this._forward_pass(),
            lambda: this._computing(),
        )
        return self.precision.unscaled(total)

    @contextmanager
    def _forward_pass(self) -> Iterator[None]:
        with self._computing(), self.precision.autocast():
            yield

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Count the block as COMPUTE, and the time after it as exposed communication."""
        self.clock.switch(COMPUTE)
        yield
        self.clock.switch(COMM)

    def _load(self, batches: Iterator[Any]) -> Any:
        return to_device(next(batches), self._device)

    def _loss(self, batch: Any) -> Tensor:
        with self.precision.autocast():
            return self._share_of_loss(self.model, batch)

    def _share_of_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The part of the step's loss that one micro-batch contributes."""
        loss = self.spec.objective.batch_loss(model, batch)
        return loss / self.plan.accumulation if self.plan.accumulation > 1 else loss

    def _update(self, step: int) -> tuple[Tensor | None, Tensor | None]:
        """Clip, set the learning rate, update; the gradient norm, and whether the update was skipped."""
        clip, grad_norm = self.spec.config.optim.grad_clip, None
        self.precision.unscale(self.strategy.parameters(self.model))
        if clip is not None or self.precision.checks_gradients:
            grad_norm = self.strategy.grad_norm(self.model, self.strategy.parameters(self.model))
        if clip is not None and grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.strategy.parameters(self.model), clip, grad_norm)
        set_learning_rate(self.optimizer, self._rates[step - 1])
        skipped = self.precision.step(self.optimizer, grad_norm)
        if self._statistics is not None and skipped is not None:
            self._statistics.restore_if(skipped)
        self.optimizer.zero_grad(set_to_none=True)
        return grad_norm, skipped


def communicates(stepper: Stepper) -> Callable[[], bool]:
    """Whether this rank is in a phase of communication. Heartbeats must not keep the model beyond its
    process group."""
    this = weakref.ref(stepper)
    return lambda: (alive := this()) is not None and alive.clock.phase in COMMUNICATION


@contextmanager
def collections_by_hand() -> Iterator[None]:
    """Turn Python's automatic collection of garbage off, which would delay the other ranks at each rank's
    turn.

    Objects that exist at the first step, such as modules and the model, are frozen: no collection walks over
    them.
    """
    enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
