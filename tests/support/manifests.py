"""A manifest of a checkpoint without files."""

from __future__ import annotations

import torch

from disttrain.records.checkpoint import Checkpoint


def manifest(step: int = 10, valid_loss: float | None = None, world_size: int = 1) -> Checkpoint:
    return Checkpoint(
        step=step,
        attempt=0,
        config_key="k",
        world_size=world_size,
        global_batch_size=4,
        seed=0,
        dataset="d",
        dataset_sha256=None,
        valid_loss=valid_loss,
        created="",
        torch=torch.__version__,
        files={},
    )
