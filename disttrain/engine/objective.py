"""The task of a model: the loss that is minimised and the metrics that are reported."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from disttrain.data.source import Source
from disttrain.errors import ConfigError


@dataclass(frozen=True)
class Task:
    """The objective of one kind of task on pairs (inputs, targets); see `Source.task` for the kinds.

    The loss of language is the cross-entropy in nats per token, that of regression the mean squared error.
    """

    kind: str
    bytes_per_token: float | None = None
    loss_in_model: bool = False
    """Whether the model computes the loss itself, from inputs and targets."""

    @classmethod
    def of(cls, source: Source, loss_in_model: bool = False) -> Task:
        return cls(source.task, source.bytes_per_token, loss_in_model)

    def batch_loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean loss of `model` over the samples of `batch`, a scalar."""
        inputs, targets = batch
        if self.loss_in_model:
            loss: Tensor = model(inputs, targets)
            return loss
        return self._loss(model(inputs), targets)

    def batch_tally(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """(summed loss, items, correct) of a batch, three values of dtype float64. An item is a token, a
        sample or a value. Tallies are added up."""
        inputs, targets = batch
        if self.loss_in_model:
            return _tally(model(inputs, targets), targets.numel())
        output = model(inputs)
        is_class = self.kind == "classification"
        correct = (output.argmax(-1) == targets).sum() if is_class else 0
        return _tally(self._loss(output, targets), targets.numel(), correct)

    def metrics(self, tally: Tensor) -> tuple[float, dict[str, float | None]]:
        """(mean loss, named metrics) of an accumulated tally."""
        summed, items, correct = tally.tolist()
        loss = summed / items
        if self.kind == "classification":
            return loss, {"accuracy": correct / items}
        if self.kind == "language" and self.bytes_per_token:
            return loss, {"bits_per_byte": loss / math.log(2) / self.bytes_per_token}
        return loss, {}

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        if self.kind == "regression":
            return F.mse_loss(output, target)
        return F.cross_entropy(output.flatten(0, -2), target.flatten())


@dataclass(frozen=True)
class OwnObjective:
    """The objective of a user's function from model and batch to the mean loss over the batch."""

    batch_loss: Callable[[nn.Module, Any], Tensor]

    def batch_tally(self, model: nn.Module, batch: Any) -> Tensor:
        return _tally(self.batch_loss(model, batch), batch_samples(batch))

    def metrics(self, tally: Tensor) -> tuple[float, dict[str, float | None]]:
        summed, samples, _ = tally.tolist()
        return summed / samples, {}


Objective = Task | OwnObjective
"""Loss and metrics of a model on a batch."""


def _tally(loss: Tensor, items: int, correct: Tensor | int = 0) -> Tensor:
    summed = loss.double() * items
    return torch.stack([summed, torch.full_like(summed, items), torch.zeros_like(summed) + correct])


def batch_samples(batch: Any) -> int:
    """Samples of a batch: the first dimension of its first tensor. Raises `ConfigError` without a tensor."""
    for value in tree_leaves(batch):
        if isinstance(value, Tensor) and value.dim():
            return len(value)
    raise ConfigError(f"a batch of type {type(batch).__name__} holds no tensor with a dimension of samples")
