"""The task of a model: the loss that is minimised and the metrics that are reported."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from disttrain.data.source import Source
from disttrain.errors import ConfigError


class Objective(Protocol):
    """Loss and metrics of a model on a batch: of a `Task`, or of a user's function."""

    def batch_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean loss of `model` over the samples of `batch`, a scalar."""

    def batch_tally(self, model: nn.Module, batch: Any) -> Tensor:
        """(summed loss, items, correct) of a batch, three values of dtype float64. Tallies are added up."""

    def metrics(self, tally: Tensor) -> tuple[float, dict[str, float | None]]:
        """(mean loss, named metrics) of an accumulated tally."""


@dataclass(frozen=True)
class Task:
    """The `Objective` of one kind of task on pairs (inputs, targets); see `Source.task` for the kinds."""

    kind: str
    bytes_per_token: float | None = None
    loss_in_model: bool = False
    """Whether the model computes the loss itself, from inputs and targets."""

    @classmethod
    def of(cls, source: Source, loss_in_model: bool = False) -> Task:
        return cls(source.task, source.bytes_per_token, loss_in_model)

    def batch_loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        if self.loss_in_model:
            loss: Tensor = model(inputs, targets)
            return loss
        return self.loss(model(inputs), targets)

    def batch_tally(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        if self.loss_in_model:
            items = torch.tensor(targets.numel(), dtype=torch.float64, device=targets.device)
            return torch.stack([model(inputs, targets).double() * items, items, torch.zeros_like(items)])
        return self.tally(model(inputs), targets)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean loss over the batch, a scalar.

        language: `output` (batch, time, vocabulary), `target` (batch, time), cross-entropy in nats per
        token. classification: (batch, classes) and (batch,). regression: equal shapes, mean squared error.
        """
        if self.kind == "regression":
            return F.mse_loss(output, target)
        return F.cross_entropy(output.flatten(0, -2), target.flatten())

    def tally(self, output: Tensor, target: Tensor) -> Tensor:
        """(summed loss, items, correct) of one batch as float64; an item is a token, a sample or a value."""
        items = target.numel()
        correct = torch.zeros((), device=output.device)
        if self.kind == "classification":
            correct = (output.argmax(-1) == target).sum()
        summed = self.loss(output, target).double() * items
        return torch.stack([summed, torch.tensor(items, device=output.device).double(), correct.double()])

    def metrics(self, tally: Tensor) -> tuple[float, dict[str, float | None]]:
        """(mean loss, named metrics) of an accumulated tally."""
        summed, items, correct = tally.tolist()
        loss = summed / items
        if self.kind == "classification":
            return loss, {"accuracy": correct / items}
        if self.kind == "language" and self.bytes_per_token:
            return loss, {"bits_per_byte": loss / math.log(2) / self.bytes_per_token}
        return loss, {}


@dataclass(frozen=True)
class OwnObjective:
    """The `Objective` of a user's function from model and batch to the mean loss over the batch."""

    loss: Callable[[nn.Module, Any], Tensor]

    def batch_loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self.loss(model, batch)

    def batch_tally(self, model: nn.Module, batch: Any) -> Tensor:
        samples = batch_samples(batch)
        summed = self.loss(model, batch).double() * samples
        return torch.stack([summed, torch.full_like(summed, samples), torch.zeros_like(summed)])

    def metrics(self, tally: Tensor) -> tuple[float, dict[str, float | None]]:
        summed, samples, _ = tally.tolist()
        return summed / samples, {}


def batch_samples(batch: Any) -> int:
    """Samples of a batch: the first dimension of its first tensor. Raises `ConfigError` without a tensor."""
    for value in tree_leaves(batch):
        if isinstance(value, Tensor) and value.dim():
            return len(value)
    raise ConfigError(f"a batch of type {type(batch).__name__} holds no tensor with a dimension of samples")
