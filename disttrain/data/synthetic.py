"""Synthetic data of any shape, for measurements of throughput: loading takes microseconds.

A sample depends only on the seed and its index. Targets can be learned from the inputs, so a falling loss
shows that training works.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch.utils.data import Dataset, Subset

from disttrain.data.source import Sample, Source, sample_count
from disttrain.records.dataset import DatasetRecord
from disttrain.runtime.process import rank_info, wait_until

_ROW = 1 << 20
"""Values (4 MiB) in the row from which images are cut, in addition to the size of one image."""
_SHORTEST_PERIOD = 64
"""Shortest period of the wave, in values of the row."""
_SPREAD = 40_507
"""A prime near 2**16 / golden ratio: consecutive indices map to distant positions."""
_STRIDES = 4
"""Number of strides of a sentence; its first two tokens determine the stride."""


def build(
    *,
    task: Literal["classification", "language"] = "classification",
    shape: tuple[PositiveInt, ...] = (3, 32, 32),
    classes: PositiveInt = 10,
    vocab: PositiveInt = 256,
    seq_len: PositiveInt = 128,
    samples: PositiveInt = 10_000,
    valid_samples: NonNegativeInt = 1_000,
    seed: int = 0,
    delay_s: NonNegativeFloat = 0.0,
    delay_ranks: tuple[int, ...] = (),
) -> Source:
    """Synthetic samples of any shape.

    Parameters
    ----------
    task : `classification` of `shape` into `classes`, or `language`: `seq_len` tokens out of `vocab`.
    shape : sizes of a sample.
    classes : number of classes.
    vocab : number of different tokens.
    seq_len : tokens of a sample.
    samples : training samples.
    valid_samples : validation samples; 0: no validation.
    seed : seed of the samples.
    delay_s : additional seconds of loading a training batch; the run is emulated.
    delay_ranks : ranks with this delay; empty: all.
    """
    total = samples + valid_samples
    dataset: Dataset[Sample]
    if task == "language":
        dataset, shape, classes = Sentences(total, seq_len, vocab, seed), (seq_len,), vocab
    else:
        dataset = Waves(total, shape, classes, seed)
    generated_by = json.dumps([task, shape, classes, seed])
    train: Dataset[Sample] = Subset(dataset, range(samples))
    if delay_s and (not delay_ranks or rank_info().rank in delay_ranks):
        train = Delayed(train, delay_s)
    return Source(
        train=train,
        valid=Subset(dataset, range(samples, total)) if valid_samples else None,
        task=task,
        shape=shape,
        classes=classes,
        tokens_per_sample=seq_len if task == "language" else None,
        record=DatasetRecord(
            name="synthetic",
            version=f"seed {seed}",
            sha256=hashlib.sha256(generated_by.encode()).hexdigest(),
        ),
    )


@dataclass(eq=False)
class Delayed(Dataset[Sample]):
    """Adds `delay_s` seconds to the loading of each batch of another dataset."""

    dataset: Dataset[Sample]
    delay_s: float

    def __len__(self) -> int:
        return sample_count(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        wait_until(time.perf_counter() + self.delay_s)
        return [self.dataset[index] for index in indices]


class Waves(Dataset[Sample]):
    """Noisy waves whose phase encodes the class (i % classes): views into one long row, without
    computation."""

    def __init__(self, samples: int, shape: tuple[int, ...], classes: int, seed: int) -> None:
        self.samples, self.shape, self.classes = samples, shape, classes
        self._numel = math.prod(shape)
        self._shift = math.ceil(_SHORTEST_PERIOD / classes)
        self._period = self._shift * classes
        self._slots = max(1, _ROW // self._period)
        length = (self._slots + 1) * self._period + self._numel
        noise = torch.randn(length, generator=torch.Generator().manual_seed(seed))
        self._row = noise + 2 * torch.cos(torch.arange(length) * (2 * math.pi / self._period))

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        label = index % self.classes
        start = index * _SPREAD % self._slots * self._period + label * self._shift
        return self._row[start : start + self._numel].view(self.shape), torch.tensor(label)


class Sentences(Dataset[Sample]):
    """Arithmetic token sequences modulo the vocabulary; the index determines start and stride."""

    def __init__(self, samples: int, seq_len: int, vocab: int, seed: int) -> None:
        self.samples, self.vocab, self.seed = samples, vocab, seed
        self._positions = torch.arange(seq_len + 1)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        start = (index + self.seed) * _SPREAD % self.vocab
        stride = 1 + (index // self.vocab) % _STRIDES
        tokens = (start + stride * self._positions) % self.vocab
        return tokens[:-1], tokens[1:]
