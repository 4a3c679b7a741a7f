"""Validation: each held-out sample once, distributed over the ranks, between timed steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from disttrain.config.sections.data import DataConfig
from disttrain.data.loader import make_loader, to_device
from disttrain.data.source import Sample
from disttrain.engine.hook import Hook
from disttrain.engine.step_runner import StepRunner
from disttrain.engine.task import Objective
from disttrain.optim.precision import Precision
from disttrain.parallel.base import Strategy
from disttrain.parallel.buffers import broadcast_buffers
from disttrain.parallel.mesh import Mesh
from disttrain.records.metrics import EvalPoint
from disttrain.runtime import heartbeat
from disttrain.runtime.process_group import World
from disttrain.telemetry.run import RunTelemetry
from disttrain.telemetry.step_result import StepResult


@dataclass(frozen=True)
class Validation:
    """The samples of a validation, their batches, and the task that scores them."""

    dataset: Dataset[Sample]
    task: Objective
    world: World
    mesh: Mesh
    batch_size: int
    max_samples: int
    """0 means all."""
    precision: Precision
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of samples; None: `default_collate` of torch."""

    def run(self, model: nn.Module, step: int, strategy: Strategy | None = None) -> EvalPoint:
        """Validate `model`, which `strategy` made parallel; without it, a model as it is. All ranks together.

        All ranks take the buffers of rank 0, such as running statistics of batch norm: a checkpoint holds
        them, and DDP broadcasts them before the next step anyway.
        """
        began = time.monotonic()
        strategy = strategy or Strategy()
        broadcast_buffers(model, self.world)
        available = len(self.dataset)  # type: ignore[arg-type]
        count = min(self.max_samples or available, available)
        # a constant stride covers the whole split with a limited number of samples, the same each time
        chosen = [i * available // count for i in range(count)][self.mesh.data_rank :: self.mesh.data_size]
        batches = [chosen[at : at + self.batch_size] for at in range(0, len(chosen), self.batch_size)]
        tally = torch.zeros(3, dtype=torch.float64, device=self.world.device)
        was_training = model.training
        model.eval()
        own = len(batches)
        if strategy.gathers_parameters:  # every forward pass is a collective
            largest = -(-count // self.mesh.data_size)
            batches += [[0]] * (-(-largest // self.batch_size) - own)
        with strategy.evaluation(model), self.precision.autocast():
            loader = make_loader(self.dataset, batches, DataConfig(), self.world.device, collate=self.collate)
            for number, batch in enumerate(loader):
                found = strategy.batch_tally(model, to_device(batch, self.world.device), self.task)
                if number < own:
                    tally += found
                heartbeat.progress()
        model.train(was_training)
        loss, metrics = self.task.metrics(self.world.all_reduce(tally))
        elapsed = time.monotonic() - began
        return EvalPoint(step=step, loss=loss, metrics=metrics, samples=count, elapsed_s=elapsed)


class EvaluationHook(Hook):
    """Validates after the last step and after every `every` steps (0: only after the last)."""

    def __init__(
        self,
        validation: Validation,
        runner: StepRunner,
        telemetry: RunTelemetry,
        listeners: Sequence[Callable[[EvalPoint], None]],
        steps: int,
        every: int,
    ) -> None:
        self._validation = validation
        self._runner = runner
        self._telemetry = telemetry
        self._listeners = listeners
        self._steps = steps
        self._every = every

    def on_step(self, result: StepResult) -> None:
        if not is_due(result.step, self._steps, self._every):
            return
        with heartbeat.within("evaluation"), self._telemetry.outside_steps():
            point = self._validation.run(self._runner.model, result.step, self._runner.strategy)
            for listener in self._listeners:
                listener(point)


def is_due(step: int, steps: int, every: int) -> bool:
    """Whether a validation follows `step`."""
    return step == steps or (every > 0 and step % every == 0)
