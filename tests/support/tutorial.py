"""The training loop of a PyTorch tutorial, in which nothing of disttrain is needed."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from disttrain import LoopTelemetry

EPOCHS, BATCH, SAMPLES = 4, 8, 256


@dataclass
class Output:
    """What a model returns that torch was not told how to flatten."""

    hidden: torch.Tensor
    logits: torch.Tensor


@dataclass
class ModelOutput(OrderedDict):
    """A mapping and a dataclass at once, as in a library of language models."""

    hidden: torch.Tensor
    logits: torch.Tensor

    def __post_init__(self) -> None:
        self.update({field.name: getattr(self, field.name) for field in fields(self)})


class Opaque:
    """Nobody can see what is in it."""

    def __init__(self, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        self.logits = logits


RETURNS = {
    "tensor": lambda hidden, logits: logits,
    "tuple": lambda hidden, logits: (hidden, logits),
    "dict": lambda hidden, logits: {"hidden": [hidden], "logits": logits},
    "dataclass": Output,
    "model output": ModelOutput,
    "opaque": Opaque,
}
"""What a model may return. The loss is made of the logits, no gradient comes to what stands before them."""


class Classifier(nn.Sequential):
    """Returns its logits in one of the ways of `RETURNS`. Where it is `nested`, its layers are computed again
    in a backward pass within the backward pass."""

    def __init__(self, returns: str, nested: bool) -> None:
        super().__init__(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
        self.returns = returns
        self.nested = nested

    def forward(self, features: torch.Tensor) -> Any:
        if self.nested:
            return checkpoint(super().forward, features.requires_grad_(), use_reentrant=True)
        hidden = self[1](self[0](features))
        return RETURNS[self.returns](hidden * 2, self[2](hidden))


def logits_of(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, tuple):
        return output[1]
    return output.logits if hasattr(output, "logits") else output["logits"]


def train(
    rank: int,
    size: int,
    run_dir: str,
    *,
    late: int = -1,
    late_s: float = 0.0,
    fail_at: int = 0,
    returns: str = "tensor",
    nested: bool = False,
    buffers: bool = False,
) -> None:
    """Rank `late` is `late_s` seconds late in each step; every rank fails at step `fail_at`. With `buffers`,
    the delay precedes the forward pass, in which DDP broadcasts a buffer."""
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, 20)
    data = TensorDataset(inputs, inputs[:, :5].argmax(1))
    sampler = DistributedSampler(data, num_replicas=size, rank=rank)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model: nn.Module = Classifier(returns, nested)
    if buffers:
        model.register_buffer("running_mean", torch.zeros(8))
    if size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps, step = EPOCHS * len(loader), 0
    settings = {"warmup_steps": 4, "profiled_steps": 1, "sinks": []}
    with LoopTelemetry(
        run_dir, model, optimizer, steps=steps, samples_per_step=BATCH, telemetry=settings
    ) as telemetry:
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            model.train()
            for features, targets in telemetry.steps(loader):
                step += 1
                if buffers and rank == late:
                    time.sleep(late_s)
                loss = F.cross_entropy(logits_of(model(features)), targets)
                if not buffers and rank == late:
                    time.sleep(late_s)
                if step == fail_at:
                    raise RuntimeError("the loop went wrong")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                telemetry.record_loss(loss)
            model.eval()
            with torch.no_grad():
                model(inputs)  # a validation, which belongs to no step
