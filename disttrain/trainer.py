"""One optimizer step: micro-batches in, updated weights out, every instant accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from disttrain.batch import BatchPlan
from disttrain.config import OptimConfig
from disttrain.optim import learning_rate, set_learning_rate
from disttrain.parallel.select import Strategy
from disttrain.task import Task
from disttrain.telemetry.phases import COMM, COMPUTE, INPUT, OPTIMIZER, OTHER, StepClock, after_own_backward

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
        self.steps = steps
        self.clock = clock
        self.lr = 0.0
        self._device = next(model.parameters()).device
        self._communicates = strategy.COMM_METHOD is not None

    @property
    def bare_model(self) -> nn.Module:
        """The model without its distributed wrapper."""
        return self.strategy.bare(self.model)

    def step(self, step: int, batches: Iterator[Batch]) -> Tensor:
        """Run optimizer step `step` (1 is the first) on the next micro-batches; its mean local loss."""
        losses = []
        for micro in range(self.plan.accumulation):
            self.clock.switch(INPUT)
            inputs, targets = next(batches)
            inputs = inputs.to(self._device, non_blocking=True)
            targets = targets.to(self._device, non_blocking=True)
            self.clock.switch(COMPUTE)
            losses.append(self._forward_backward(inputs, targets, last=micro == self.plan.accumulation - 1))
        self.clock.switch(OPTIMIZER)
        self._update(step)
        self.clock.switch(OTHER)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _forward_backward(self, inputs: Tensor, targets: Tensor, *, last: bool) -> Tensor:
        # gradients travel with the last micro-batch only, carrying the sum of all
        with nullcontext() if last else self.strategy.without_sync(self.model):
            loss = self.task.loss(self.model(inputs), targets)
            if self.plan.accumulation > 1:
                loss = loss / self.plan.accumulation
            if last and self._communicates:
                after_own_backward(loss, self._own_backward_done)
            loss.backward()
        return loss.detach()

    def _own_backward_done(self) -> None:
        self.clock.switch(COMM)

    def _update(self, step: int) -> None:
        if self.optim.grad_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.optim.grad_clip)
        self.lr = learning_rate(step, self.steps, self.optim, self.plan.global_)
        set_learning_rate(self.optimizer, self.lr)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
