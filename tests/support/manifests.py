"""A manifest of a checkpoint, without files or of shares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from disttrain.checkpoint import storage
from disttrain.checkpoint.folder import CommittedCheckpoint, file_digest
from disttrain.checkpoint.share import Share
from disttrain.checkpoint.storage import WrittenShare, describe_shares
from disttrain.records.checkpoint import Checkpoint


def manifest(step: int = 10, valid_loss: float | None = None, world_size: int = 1) -> Checkpoint:
    return Checkpoint(
        step=step,
        attempt=0,
        config_key="k",
        code_hash="c",
        world_size=world_size,
        global_batch_size=4,
        seed=0,
        dataset="d",
        dataset_sha256=None,
        dataset_fingerprint=None,
        valid_loss=valid_loss,
        created="",
        torch=torch.__version__,
        files={},
        tensors={},
        positions=[],
    )


def write_checkpoint(path: Path, shares: Sequence[Share], made: Checkpoint) -> CommittedCheckpoint:
    """Write these shares, by rank, and `.metadata`; the checkpoint, which is not committed."""
    written = [
        WrittenShare(
            share.described,
            storage.write(share.tensors, path, rank),
            file_digest(path / storage.file_of(rank)),
            share.layout,
        )
        for rank, share in enumerate(shares)
    ]
    made = made.model_copy(update=describe_shares(written))
    storage.write_metadata(path, made)
    return CommittedCheckpoint(path, made)
