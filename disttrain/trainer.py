"""One optimizer step: micro-batches in, updated weights out, every instant accounted for."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from disttrain.checkpoint.state import dropped_gradients, preserve_state
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.sections import OptimConfig
from disttrain.emulation.model import Emulated
from disttrain.optim.optimizer import learning_rate, set_learning_rate
from disttrain.parallel.strategy import Strategy
from disttrain.task import Task
from disttrain.telemetry.step_clock import (
    COMM,
    COMPUTE,
    INPUT,
    OPTIMIZER,
    OTHER,
    StepClock,
    after_own_backward,
)

Batch = tuple[Tensor, Tensor]


class Trainer:
    """Holds what a step needs.

    `model` is wrapped by `strategy` already; `steps` is the length of the schedule. The caller closes
    each step on the `clock`.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        optimizer: torch.optim.Optimizer,
        optim: OptimConfig,
        strategy: Strategy,
        plan: BatchPlan,
        steps: int,
        clock: StepClock,
    ) -> None:
        self.model = model
        self.task = task
        self.optimizer = optimizer
        self.optim = optim
        self.strategy = strategy
        self.plan = plan
        # all of them now: a million cost a second here, and next to nothing in the step
        self._rates = array("d", (learning_rate(s, steps, optim, plan.global_) for s in range(1, steps + 1)))
        self.clock = clock
        self.lr = 0.0
        self._device = next(model.parameters()).device
        self._communicates = strategy.COMM_METHOD is not None
        bare = self.unwrapped_model
        self._emulated = bare if isinstance(bare, Emulated) else None

    @property
    def unwrapped_model(self) -> nn.Module:
        """The model without its distributed wrapper."""
        return self.strategy.unwrap(self.model)

    def step(self, step: int, batches: Iterator[Batch]) -> Tensor:
        """Run optimizer step `step` (1 is the first) on the next micro-batches; its mean local loss."""
        clock = self.clock
        if self._emulated is not None:
            self._emulated.begin_step(step)
        losses = []
        for _ in range(self.plan.accumulation - 1):
            clock.switch(INPUT)
            inputs, targets = self._load(batches)
            clock.switch(COMPUTE)
            with self.strategy.without_sync(self.model):
                loss = self._loss(inputs, targets)
                loss.backward()
            losses.append(loss.detach())
        # gradients travel with the last micro-batch only, carrying the sum of all
        clock.switch(INPUT)
        inputs, targets = self._load(batches)
        clock.switch(COMPUTE)
        loss = self._loss(inputs, targets)
        if self._communicates:
            after_own_backward([loss], self._own_backward_done)
        loss.backward()
        clock.switch(OPTIMIZER)
        self._update(step)
        clock.switch(OTHER)
        return torch.stack([*losses, loss.detach()]).sum() if losses else loss.detach()

    def prime_buckets(self, batch: Batch) -> None:
        """Make a forward and a backward pass that leave nothing behind, for a strategy that `PRIMES_BUCKETS`.

        All ranks together, before the first step of every start, fresh or resumed.
        """
        with preserve_state(self.model, self._device):
            inputs, targets = self._load(iter([batch]))
            self._loss(inputs, targets).backward()

    def isolated_pass(self, batch: Batch, mark: Callable[[str], None]) -> None:
        """Make a forward and a backward pass on this rank alone that leave nothing behind.

        `mark` is called with `forward`, `backward` and `end` when each begins, and after the last.
        """
        with ExitStack() as stack:
            stack.enter_context(preserve_state(self.model, self._device))
            stack.enter_context(self.strategy.no_comm(self.model))
            stack.enter_context(dropped_gradients(self.model))
            if self._emulated is not None:
                stack.enter_context(self._emulated.uncounted())
            inputs, targets = self._load(iter([batch]))
            mark("forward")
            loss = self._loss(inputs, targets)
            mark("backward")
            loss.backward()
            mark("end")

    def _load(self, batches: Iterator[Batch]) -> Batch:
        inputs, targets = next(batches)
        return inputs.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = self.task.loss(self.model(inputs), targets)
        return loss / self.plan.accumulation if self.plan.accumulation > 1 else loss

    def _own_backward_done(self) -> None:
        self.clock.switch(COMM)

    def _update(self, step: int) -> None:
        if self.optim.grad_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.optim.grad_clip)
        self.lr = self._rates[step - 1]
        set_learning_rate(self.optimizer, self.lr)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
