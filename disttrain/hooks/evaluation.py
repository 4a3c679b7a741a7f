"""Validation: every held-out sample once, spread over the ranks, outside of any timed step."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import Dataset

from disttrain.config.sections import DataConfig
from disttrain.data.loader import make_loader
from disttrain.records.metrics import EvalPoint
from disttrain.runtime.process_group import World
from disttrain.task import Task


@dataclass(frozen=True)
class Evaluation:
    """How to validate: which samples, in what batches, by which task."""

    dataset: Dataset[tuple[torch.Tensor, torch.Tensor]]
    task: Task
    world: World
    batch_size: int
    max_samples: int
    """0 means all."""

    def __call__(self, model: nn.Module, step: int) -> EvalPoint:
        """Evaluate the bare `model` (not its distributed wrapper: ranks may have unequal batch counts)."""
        began = time.monotonic()
        available = len(self.dataset)  # type: ignore[arg-type]
        count = min(self.max_samples or available, available)
        # a stride spreads a limited number of samples over the whole split, the same ones every time
        chosen = [i * available // count for i in range(count)][self.world.rank :: self.world.size]
        batches = [chosen[at : at + self.batch_size] for at in range(0, len(chosen), self.batch_size)]
        tally = torch.zeros(3, dtype=torch.float64, device=self.world.device)
        was_training = model.training
        model.eval()
        with torch.inference_mode():
            for inputs, targets in make_loader(self.dataset, batches, DataConfig(), self.world.device):
                output = model(inputs.to(self.world.device))
                tally += self.task.tally(output, targets.to(self.world.device))
        model.train(was_training)
        loss, metrics = self.task.metrics(self.world.all_reduce(tally))
        elapsed = time.monotonic() - began
        return EvalPoint(step=step, loss=loss, metrics=metrics, samples=count, elapsed_s=elapsed)
