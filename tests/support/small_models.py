"""Small models and sources for tests, used through their import paths."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from disttrain.data.source import Arrays, Source
from disttrain.models.resnet import BasicBlock, ResNet
from disttrain.records.dataset import DatasetRecord

FEATURES, CLASSES = 8, 4


def source(samples: int = 64, valid: int = 13, rank_specific: bool = False) -> Source:
    """A learnable classification: the class is the largest of the first four features.

    `rank_specific` gives every rank data of another name.
    """
    inputs = torch.randn(samples + valid, FEATURES, generator=torch.Generator().manual_seed(0))
    targets = inputs[:, :CLASSES].argmax(1)
    name = f"argmax-{os.environ.get('RANK')}" if rank_specific else "argmax"
    train, held_out = Arrays(inputs[:samples], targets[:samples]), Arrays(inputs[samples:], targets[samples:])
    return Source(
        train=train,
        valid=held_out if valid else None,
        task="classification",
        shape=(FEATURES,),
        classes=CLASSES,
        record=DatasetRecord(name=name),
    )


class Drawing(Dataset[tuple[Tensor, Tensor]]):
    """Adds noise to each sample, from every generator that a dataset may draw from."""

    def __init__(self, samples: Dataset[tuple[Tensor, Tensor]]) -> None:
        self.samples = samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self.samples[index]
        noise = torch.rand(FEATURES) + random.random() + np.random.rand()
        return inputs + 0.1 * noise, target

    def __len__(self) -> int:
        return len(self.samples)  # type: ignore[arg-type]


def drawing_source(samples: int = 64) -> Source:
    """`source`, of which no sample is the same twice."""
    plain = source(samples)
    return dataclasses.replace(plain, train=Drawing(plain.train))


class Net(nn.Module):
    """Two linear layers; `slow_rank` sleeps `slow_s` seconds in every forward pass of training."""

    def __init__(self, hidden: int = 16, slow_rank: int = -1, slow_s: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))
        self.slow_s = slow_s if int(os.environ.get("RANK", "0")) == slow_rank else 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and self.slow_s:
            time.sleep(self.slow_s)
        return self.layers(inputs)


def small_resnet(source: Source, width: int = 8) -> ResNet:
    """A ResNet of two residual blocks."""
    return ResNet(BasicBlock, (1, 1), source.shape[0], True, source.classes, width)


class Failing(Net):
    """Raises on `rank` in its third training forward pass."""

    def __init__(self, rank: int = 0, message: str = "boom") -> None:
        super().__init__()
        self.fails = int(os.environ.get("RANK", "0")) == rank
        self.message = message
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += self.training
        if self.fails and self.calls == 3:
            raise RuntimeError(self.message)
        return super().forward(inputs)


class Hanging(Net):
    """Hangs on `rank` in its training forward pass number `call`, once: `marker` says that it has.

    `how`: `stop` stops the process, `sleep` sleeps.
    """

    def __init__(self, marker: str, rank: int, how: str = "stop", call: int = 4) -> None:
        super().__init__()
        self.marker = Path(marker)
        self.hangs = int(os.environ.get("RANK", "0")) == rank
        self.how = how
        self.call = call
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += self.training
        if self.hangs and self.calls == self.call and not self.marker.exists():
            self.marker.touch()
            if self.how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                time.sleep(1000)
        return super().forward(inputs)


class Deep(nn.Module):
    """Several layers whose training depends on everything that a checkpoint has to hold: dropout on the
    random numbers, batch norms on their buffers."""

    def __init__(self, hidden: int = 24, layers: int = 4, dropout: float = 0.2) -> None:
        super().__init__()
        sizes = [FEATURES, *[hidden] * layers]
        blocks = [
            nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.Tanh(), nn.Dropout(dropout))
            for a, b in itertools.pairwise(sizes)
        ]
        self.layers = nn.Sequential(*blocks, nn.Linear(hidden, CLASSES))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


class Asking(Net):
    """Asks its run to stop in its training forward pass number `call`, unless `marker` says that it has:
    by a signal to its own process, or by the STOP file that is `marker`'s neighbour."""

    def __init__(self, marker: str = "", call: int = 3, signal_number: int = 0) -> None:
        super().__init__()
        self.marker = Path(marker)
        self.call = call
        self.signal_number = signal_number
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += self.training
        if self.training and self.calls == self.call and not self.marker.exists():
            self.marker.touch()
            if self.signal_number:
                os.kill(os.getpid(), self.signal_number)
            else:
                self.marker.with_name("STOP").touch()
        return super().forward(inputs)


class SlowDeep(Deep):
    """`Deep`, computing the same in more time: after `quick` forward passes of training, each takes rank 0
    `slow_s` seconds longer, until the file `hurry` exists."""

    def __init__(self, slow_s: float = 0.0, quick: int = 0, hurry: str = "") -> None:
        super().__init__()
        self.slow_s = slow_s if os.environ.get("RANK", "0") == "0" else 0.0
        self.quick = quick
        self.hurry = Path(hurry)
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += self.training
        if self.training and self.slow_s and self.calls > self.quick and not self.hurry.is_file():
            time.sleep(self.slow_s)
        return super().forward(inputs)


class _Kept(torch.autograd.Function):
    """Keeps 64 MiB of resident memory a sample for the backward pass."""

    @staticmethod
    def forward(context: Any, outputs: Tensor) -> Tensor:
        context.save_for_backward(torch.ones(len(outputs), 1 << 24))
        return outputs.clone()

    @staticmethod
    def backward(context: Any, gradients: Tensor) -> Tensor:
        return gradients


class Growing(Net):
    """Grows in memory with the number of samples, and takes about the same time for any number."""

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(0.1)
        kept: Tensor = _Kept.apply(super().forward(inputs))
        return kept


class Hungry(Net):
    """Finds no memory in a probe of `size` samples and more on `rank`; with `killed`, is killed there."""

    def __init__(self, rank: int, size: int, killed: bool = False) -> None:
        super().__init__()
        self.killed = killed
        self.dies_at = size if int(os.environ.get("RANK", "0")) == rank else sys.maxsize

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs) >= self.dies_at and sys.argv[0].endswith("batch_probe.py"):
            if self.killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return super().forward(inputs)


class Leaping(Net):
    """Needs 2 GiB more with `TOO_MANY` samples than with fewer, which no fit to fewer predicts; takes about
    the same time for any number."""

    TOO_MANY = 8

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(0.05)
        if len(inputs) >= self.TOO_MANY:
            torch.ones(1 << 29)
        return super().forward(inputs)
