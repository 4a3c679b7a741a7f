"""From a dataset and a batch sampler to a PyTorch `DataLoader`."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from disttrain.config.sections import DataConfig
from disttrain.data.source import Sample
from disttrain.runtime.seeding import seed_all
from disttrain.runtime.stop_signals import SIGNALS


def make_loader(
    dataset: Dataset[Sample],
    batches: Iterable[list[int]],
    config: DataConfig,
    device: torch.device,
    *,
    seed: Sequence[int] = (),
    first: int = 0,
) -> DataLoader[Sample]:
    """A loader that yields `(inputs, targets)` for every list of indices in `batches`, in that order.

    `batches` is meant to cover the whole training (`RankBatches` does): one iterator, started once, never
    drained at an epoch's end. Batches are pinned for a CUDA device. What the dataset draws at random in a
    loader process depends on `seed` and the number of the batch, of which `first` is the first one's: so
    it is the same in a run that was resumed, and with any number of loader processes.
    """
    sampler: Iterable[Any] = batches
    processes: dict[str, Any] = {}
    if config.workers:
        dataset, sampler = _Seeded(dataset, seed), _Numbered(batches, first)
        processes = {
            "prefetch_factor": config.prefetch,
            "persistent_workers": True,
            "worker_init_fn": _outlive_stop_signals,
        }
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=config.workers,
        pin_memory=device.type == "cuda",
        **processes,
    )


class _Numbered:
    """Each batch with its number."""

    def __init__(self, batches: Iterable[list[int]], first: int) -> None:
        self._batches = batches
        self._first = first

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return enumerate(self._batches, self._first)


class _Seeded(Dataset[Sample]):
    """Takes a numbered batch, and draws the same random numbers for it wherever and whenever."""

    def __init__(self, dataset: Dataset[Sample], seed: Sequence[int]) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitems__(self, numbered: tuple[int, list[int]]) -> list[Sample]:
        number, indices = numbered
        seed_all(int(np.random.SeedSequence([*self._seed, number]).generate_state(1)[0]))
        at_once = getattr(self._dataset, "__getitems__", None)
        return at_once(indices) if at_once else [self._dataset[index] for index in indices]


def _outlive_stop_signals(_worker: int) -> None:
    # A stop signal reaches every process of the job, but the rank has a step to finish and needs its batches.
    # Loader processes leave when the rank closes them, or when they see that it is gone.
    for number in (signal.SIGINT, *SIGNALS):
        signal.signal(number, signal.SIG_IGN)
