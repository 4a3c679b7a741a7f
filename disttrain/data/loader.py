"""From a dataset and a batch sampler to a PyTorch `DataLoader`."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from disttrain.config import DataConfig
from disttrain.data.source import Sample
from disttrain.stop import SIGNALS


def make_loader(
    dataset: Dataset[Sample], batches: Iterable[list[int]], config: DataConfig, device: torch.device
) -> DataLoader[Sample]:
    """A loader that yields `(inputs, targets)` for every list of indices in `batches`, in that order.

    `batches` is meant to cover the whole training (`RankBatches` does): one iterator, started once, never
    drained at an epoch's end. Batches are pinned for a CUDA device.
    """
    processes: dict[str, Any] = {}
    if config.workers:
        processes = {
            "prefetch_factor": config.prefetch,
            "persistent_workers": True,
            "worker_init_fn": _outlive_stop_signals,
        }
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=config.workers,
        pin_memory=device.type == "cuda",
        **processes,
    )


def _outlive_stop_signals(_worker: int) -> None:
    # A stop signal reaches every process of the job, but the rank has a step to finish and needs its batches.
    # Loader processes leave when the rank closes them, or when they see that it is gone.
    for number in (signal.SIGINT, *SIGNALS):
        signal.signal(number, signal.SIG_IGN)
