"""Made-up data of any shape, for throughput: cheap enough never to be what a step waits for.

A sample depends on the seed and its index alone. There is something to learn in it, so a falling loss still
shows that training works.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Literal

import torch
from torch.utils.data import Dataset, Subset

from disttrain.data.source import Sample, Source, Task
from disttrain.errors import ConfigError
from disttrain.records.dataset import DatasetRecord
from disttrain.runtime.rank_info import rank_info
from disttrain.runtime.waiting import wait_until

_ROW = 1 << 20
"""Numbers in the row that images are cut from (4 MiB), beside one image's size."""
_SHORTEST_PERIOD = 64
"""Of the wave, in numbers of the row."""
_SPREAD = 40_507
"""A prime near 2**16 / golden ratio: consecutive indices land far apart."""
_STRIDES = 4
"""Each made-up sentence counts up by one of this many strides, which its first two tokens give away."""


def build(
    *,
    task: Literal["classification", "language"] = "classification",
    shape: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    vocab: int = 256,
    seq_len: int = 128,
    samples: int = 10_000,
    valid_samples: int = 1_000,
    seed: int = 0,
    delay_s: float = 0.0,
    delay_ranks: tuple[int, ...] = (),
) -> Source:
    """Made-up samples.

    Parameters
    ----------
    task : classification of `shape` into `classes`, or language of `seq_len` tokens out of `vocab`.
    samples, valid_samples : number of samples in each split.
    delay_s : seconds that loading a training batch takes longer, as from a slow store; such a run counts as
        emulated.
    delay_ranks : ranks whose loading is slow; none named is all of them.
    """
    sizes = {"classes": classes, "vocab": vocab, "seq_len": seq_len, "samples": samples}
    for name, value in sizes.items():
        if value < 1:
            raise ConfigError(f"data.{name}={value}: must be at least 1")
    if not shape or min(shape) < 1:
        raise ConfigError(f"data.shape={list(shape)}: one size or more, each at least 1")
    if valid_samples < 0:
        raise ConfigError(f"data.valid_samples={valid_samples}: must not be negative")
    if delay_s < 0:
        raise ConfigError(f"data.delay_s={delay_s}: must not be negative")
    total = samples + valid_samples
    dataset: Dataset[Sample] = (
        Sentences(total, seq_len, vocab, seed) if task == "language" else Waves(total, shape, classes, seed)
    )
    kind: Task = task
    train: Dataset[Sample] = Subset(dataset, range(samples))
    if delay_s and (not delay_ranks or rank_info().rank in delay_ranks):
        train = Delayed(train, samples, delay_s)
    return Source(
        train=train,
        valid=Subset(dataset, range(samples, total)) if valid_samples else None,
        task=kind,
        shape=(seq_len,) if task == "language" else shape,
        classes=vocab if task == "language" else classes,
        tokens_per_sample=seq_len if task == "language" else None,
        record=DatasetRecord(
            name="synthetic",
            version=f"seed {seed}",
            sha256=None,
            train_samples=samples,
            valid_samples=valid_samples,
        ),
    )


class Delayed(Dataset[Sample]):
    """Another dataset, each batch of which takes longer to load."""

    def __init__(self, dataset: Dataset[Sample], samples: int, delay_s: float) -> None:
        self.dataset, self.samples, self.delay_s = dataset, samples, delay_s

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        wait_until(time.perf_counter() + self.delay_s)
        return [self.dataset[index] for index in indices]


class Waves(Dataset[Sample]):
    """A wave under noise, its phase the class (i % classes): a view into one long row, nothing computed."""

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
    """Tokens that count up, modulo the vocabulary, from a start and by a stride that the index decides."""

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
