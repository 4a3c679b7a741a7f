"""Manifest of a checkpoint."""

from __future__ import annotations

from disttrain.records.base import Record
from disttrain.records.batch_fit import BatchFit


class CheckpointFile(Record):
    """Size and checksum of one file of a checkpoint."""

    bytes: int
    sha256: str


class Checkpoint(Record):
    """`checkpoints/step-NNNNNNNN/manifest.json`: origin of a checkpoint, and checksums of its files."""

    step: int
    """Completed optimizer steps."""
    attempt: int
    """Number of the attempt that wrote it."""
    config_key: str
    """Config key of the run (see `RunRecord.config_key`)."""
    code_hash: str | None = None
    """Hash of the code that wrote it (see `Code.hash`)."""
    world_size: int
    global_batch_size: int
    batch_fit: BatchFit | None = None
    """The search of `train.local_batch_size: auto`; null for a given size."""
    seed: int
    dataset_sha256: str | None
    dataset_fingerprint: str | None = None
    """See `DatasetRecord.fingerprint`; null in checkpoints of earlier versions."""
    dataset: str
    valid_loss: float | None
    """Validation loss at this step; null without a validation at this step."""
    created: str
    torch: str
    files: dict[str, CheckpointFile]
    """Every other file of the checkpoint, by name."""
