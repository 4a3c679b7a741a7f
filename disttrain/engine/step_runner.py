"""One optimizer step: micro-batches in, updated parameters out, every instant assigned to a phase."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from disttrain.checkpoint.state_tensors import drop_gradients, preserve_state
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.sections.optim import OptimConfig
from disttrain.data.loader import to_device
from disttrain.engine.task import Objective
from disttrain.models.hooks import hooks_of
from disttrain.optim.optimizer import set_learning_rate
from disttrain.optim.precision import Precision
from disttrain.optim.running_statistics import RunningStatistics
from disttrain.optim.schedules import learning_rate
from disttrain.parallel.base import Strategy
from disttrain.runtime.fully_shard_hooks import compute_device
from disttrain.telemetry.step_clock import (
    COMM,
    COMPUTE,
    INPUT,
    OPTIMIZER,
    OTHER,
    PHASE_OF_DIMENSION,
    StepClock,
    control_sync,
)
from disttrain.telemetry.step_result import StepResult


class StepRunner:
    """Runs the optimizer steps of a parallel model, which `Strategy.apply` returned.

    `steps` is the length of the learning-rate schedule. The caller closes each step on the `clock`.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Objective,
        optimizer: torch.optim.Optimizer,
        optim: OptimConfig,
        strategy: Strategy,
        plan: BatchPlan,
        steps: int,
        clock: StepClock,
        precision: Precision | None = None,
    ) -> None:
        self.model = model
        self.task = task
        self.optimizer = optimizer
        self.optim = optim
        self.strategy = strategy
        self.plan = plan
        self.precision = precision or Precision()
        # All rates are computed here, a million in one second, so that a step only reads one.
        self._rates = array("d", (learning_rate(s, steps, optim, plan.global_) for s in range(1, steps + 1)))
        self.clock = clock
        self._device = compute_device(model)
        self._model_hooks = hooks_of(self.unwrapped_model)
        self._statistics = (
            RunningStatistics(self.unwrapped_model) if self.precision.checks_gradients else None
        )
        this = weakref.proxy(self)  # a reference cycle would keep the model beyond its process group
        strategy.time_communication(
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
        return StepResult(step, loss, self._rates[step - 1], grad_norm, skipped, reason)

    def _accumulate(self, batches: Iterator[Any]) -> Tensor:
        """Run the passes of the step's micro-batches one after another; the step's loss."""
        clock = self.clock
        losses = []
        for number in range(1, self.plan.accumulation + 1):
            clock.switch(INPUT)
            batch = self._load(batches)
            clock.switch(COMPUTE)
            losses.append(self._pass(batch, last=number == self.plan.accumulation))
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

    def prime(self, batch: Any, compiles: bool = False) -> None:
        """Run passes without effect: the `priming_passes` of the strategy, at least one if the model
        `compiles` in its first pass.

        All ranks together, before the first step of every start, fresh or resumed.
        """
        for _ in range(max(self.strategy.priming_passes, int(compiles))):
            with preserve_state(self.model, self._device):
                if self.strategy.runs_schedule:
                    self._run_schedule(repeat(batch))
                else:
                    self._loss(self._load(iter([batch]))).backward()

    def isolated_pass(self, batch: Any, mark: Callable[[str], None]) -> None:
        """Run a forward and a backward pass without communication and without effect.

        `mark` is called with `forward` and `backward` when each begins, and with `end` after the last.
        """
        with ExitStack() as stack:
            stack.enter_context(preserve_state(self.model, self._device))
            stack.enter_context(self.strategy.no_comm(self.model))
            stack.enter_context(drop_gradients(self.model))
            stack.enter_context(self._model_hooks.uncounted())
            batch = self._load(iter([batch]))
            mark("forward")
            loss = self._loss(batch)
            mark("backward")
            loss.backward()
            mark("end")

    def _load(self, batches: Iterator[Any]) -> Any:
        return to_device(next(batches), self._device)

    def _pass(self, batch: Any, last: bool) -> Tensor:
        """Forward and backward pass of one micro-batch. The last one reduces the gradients over ranks."""
        with self.strategy.micro_step(self.model, last):
            loss = self._loss(batch)
            if last:
                self.strategy.on_exposed_communication(loss, self._communication_begins)
            self.precision.backward(loss)
        return loss.detach()

    def _loss(self, batch: Any) -> Tensor:
        with self.precision.autocast():
            return self._share_of_loss(self.model, batch)

    def _share_of_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The part of the step's loss that one micro-batch contributes."""
        loss = self.task.batch_loss(model, batch)
        return loss / self.plan.accumulation if self.plan.accumulation > 1 else loss

    def _communication_begins(self) -> None:
        self.clock.switch(COMM)

    def _update(self, step: int) -> tuple[Tensor | None, Tensor | None]:
        """Clip, set the learning rate, update; the gradient norm, and whether the update was skipped."""
        clip, grad_norm = self.optim.grad_clip, None
        self.precision.unscale(self.strategy.parameters(self.model))
        if clip is not None or self.precision.checks_gradients:
            grad_norm = self.strategy.grad_norm(self.model)
        if clip is not None and grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.strategy.parameters(self.model), clip, grad_norm)
        set_learning_rate(self.optimizer, self._rates[step - 1])
        skipped = self.precision.step(self.optimizer, grad_norm)
        if self._statistics is not None and skipped is not None:
            self._statistics.restore_if(skipped)
        self.optimizer.zero_grad(set_to_none=True)
        return grad_norm, skipped
