"""Build a PyTorch `DataLoader` from a dataset and a batch sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from disttrain.config.sections.model import DataConfig
from disttrain.data.source import Sample
from disttrain.runtime.device import seed_all
from disttrain.runtime.stop_signals import ignore_stop_signals


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
    resumed run and any number of loader processes therefore draw the same.
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


class _Numbered:
    """Pairs each batch with its number."""

    def __init__(self, batches: Iterable[list[int]], first: int) -> None:
        self._batches = batches
        self._first = first

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return enumerate(self._batches, self._first)


class _Seeded(Dataset[Sample]):
    """Seeds the random number generators by the number of the batch before loading it."""

    def __init__(self, dataset: Dataset[Sample], seed: Sequence[int]) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitems__(self, numbered: tuple[int, list[int]]) -> list[Sample]:
        number, indices = numbered
        seed_all(int(np.random.SeedSequence([*self._seed, number]).generate_state(1)[0]))
        at_once = getattr(self._dataset, "__getitems__", None)
        return at_once(indices) if at_once else [self._dataset[index] for index in indices]


def _outlive_stop_signals(_worker: int) -> None:
    # The rank needs batches to finish its step. Loader processes exit when the rank closes them or ends.
    ignore_stop_signals()
