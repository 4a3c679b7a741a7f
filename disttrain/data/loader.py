"""Batches of each rank: the indices of their samples, and the `DataLoader` that reads these.

All ranks share one endless stream of sample indices. Each epoch of the stream is a permutation seeded by
(seed, epoch). An optimizer step takes the next `global` positions of the stream, and each rank reads a part
of them. The samples of a step are therefore the same for any number of ranks:

    samples 5, global batch 4      stream  3 0 4 1 2 | 2 1 3 0 4 | ...
    step 0: 3 0 4 1   step 1: 2 2 1 3   (no sample is dropped at the end of an epoch)
    2 ranks, local batch 1:        rank 0 reads 3, 4, then 2, 1;   rank 1 reads 0, 1, then 2, 3

A resumed run starts at a later step; the step number is the only state. Each rank holds the permutation of
one epoch: 4 bytes per sample below 2^31 samples, else 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.sections.model import DataConfig
from disttrain.data.source import Sample
from disttrain.errors import ConfigError
from disttrain.runtime.device import seed_all
from disttrain.runtime.stop_signals import ignore_stop_signals

_LOOKED_UP = 2048
"""Indices per look-up, if they are of more than one micro-step: a look-up costs tens of microseconds."""
_BLOCK = 64
"""Largest number of micro-steps per look-up."""


class GlobalOrder:
    """The endless stream of epochs over `samples` indices.

    Raises `ConfigError` if there are no samples.
    """

    def __init__(self, samples: int, seed: int) -> None:
        if samples < 1:
            raise ConfigError("data: the training split has no samples")
        self.samples = samples
        self.seed = seed
        self._newest_epoch: dict[int, np.ndarray] = {}

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Sample indices at positions of the stream, both of shape (n,)."""
        epochs, offsets = np.divmod(positions, self.samples)
        indices = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            indices[chosen] = self._permutation(epoch)[offsets[chosen]]
        return indices

    def _permutation(self, epoch: int) -> np.ndarray:
        if epoch not in self._newest_epoch:  # positions only increase: one epoch is kept
            self._newest_epoch.clear()  # frees its memory before the next one is built
            dtype = np.int32 if self.samples <= np.iinfo(np.int32).max else np.int64
            indices = np.arange(self.samples, dtype=dtype)
            np.random.default_rng((self.seed, epoch)).shuffle(indices)
            self._newest_epoch[epoch] = indices
        return self._newest_epoch[epoch]


@dataclass
class RankBatches:
    """Batch sampler of one rank: yields the `plan.local` indices of each micro-step in [start_step, steps).

    Step s covers the stream positions [s*G, (s+1)*G) for a global batch G; in it, micro-step m of rank r
    takes the `local` positions that start at s*G + (m*world + r)*local.
    """

    order: GlobalOrder
    plan: BatchPlan
    rank: int
    steps: int
    start_step: int = 0

    @property
    def first(self) -> int:
        """Number of the first micro-step; micro-steps are numbered across steps."""
        return self.start_step * self.plan.accumulation

    def __len__(self) -> int:
        return max(0, self.steps - self.start_step) * self.plan.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        local, world = self.plan.local, self.plan.world
        last = self.first + len(self)
        block = min(_BLOCK, max(1, _LOOKED_UP // local))
        for begin in range(self.first, last, block):
            end = min(begin + block, last)
            starts = (np.arange(begin, end) * world + self.rank) * local
            positions = starts[:, np.newaxis] + np.arange(local)
            yield from self.order.at(positions.ravel()).reshape(positions.shape).tolist()


def make_loader(
    dataset: Dataset[Sample],
    batches: Iterable[list[int]],
    config: DataConfig,
    device: torch.device,
    *,
    seed: Sequence[int] = (),
    first: int = 0,
    collate: Callable[[list[Any]], Any] | None = None,
) -> DataLoader[Sample]:
    """A loader that yields the batch of every list of indices in `batches`, in that order.

    `collate` makes a batch of a list of samples; by default `default_collate` of torch.

    `batches` should cover the whole training, as `RankBatches` does: one iterator then serves all epochs and
    loader processes never restart. Batches are pinned for a CUDA device. Random numbers that the dataset
    draws in a loader process depend only on `seed` and the number of the batch, counted from `first`. A
    resumed run and any number of loader processes therefore draw the same. With loader processes, the loader
    has one iterator.
    """
    sampler: Iterable[Any] = batches
    processes: dict[str, Any] = {}
    if config.workers:
        dataset, sampler = _Seeded(dataset, seed), enumerate(batches, first)
        processes = {
            "prefetch_factor": config.prefetch,
            "persistent_workers": True,
            # The rank needs batches to finish its step. Loader processes exit when the rank closes them or
            # ends.
            "worker_init_fn": _ignore_stop_signals,
        }
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=config.workers,
        pin_memory=device.type == "cuda",
        collate_fn=collate,
        **processes,
    )


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with each tensor on `device`, at any depth of tuples, lists and mappings.

    The copy of pinned memory overlaps with the computation on a CUDA device.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple | list):
        moved = [to_device(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    if isinstance(batch, Mapping):
        return {name: to_device(value, device) for name, value in batch.items()}
    return batch


@dataclass(eq=False)
class _Seeded(Dataset[Sample]):
    """Seeds the random number generators by the number of the batch before loading it."""

    dataset: Dataset[Sample]
    seed: Sequence[int]

    def __getitems__(self, numbered: tuple[int, list[int]]) -> list[Sample]:
        number, indices = numbered
        seed_all(int(np.random.SeedSequence([*self.seed, number]).generate_state(1)[0]))
        at_once = getattr(self.dataset, "__getitems__", None)
        return at_once(indices) if at_once else [self.dataset[index] for index in indices]


def _ignore_stop_signals(_worker: int) -> None:
    ignore_stop_signals()
