"""What a checkpoint is of."""

from __future__ import annotations

from disttrain.records.base import Record


class CheckpointFile(Record):
    bytes: int
    sha256: str


class Checkpoint(Record):
    """`checkpoints/step-NNNNNNNN/manifest.json`: what a checkpoint is of, and what its files must hold."""

    step: int
    """Optimizer steps done."""
    attempt: int
    """The attempt that wrote it."""
    config_key: str
    """Of the run (see `RunRecord.config_key`)."""
    code_hash: str | None = None
    """Of the code that wrote it (see `Code.hash`)."""
    world_size: int
    global_batch_size: int
    seed: int
    dataset_sha256: str | None
    dataset: str
    valid_loss: float | None
    """If it was validated at this very step."""
    created: str
    torch: str
    files: dict[str, CheckpointFile]
    """By name, all but this one."""
