"""Manifest of a checkpoint, and the check of a path to one before a job starts."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

from disttrain.errors import nearest
from disttrain.records.base import Part, Record
from disttrain.records.run_directory import checkpoint_steps


class BatchProbe(Record):
    """Some training steps with one local batch size."""

    local_batch_size: int
    peak_bytes: int
    """Maximum over ranks, optimizer state included."""
    samples_per_s: float
    """Over all ranks, at the pace of the slowest one."""


class BatchFit(Record):
    """The chosen local batch size and its reasons. A resumed run keeps the size of its checkpoint
    where its ranks divide the global batch."""

    local_batch_size: int
    accumulation: int
    limit_bytes: int
    """Memory of one rank; minimum over ranks."""
    limit_source: str
    """Origin of the limit, such as `memory.max` of a control group."""
    reserve: float
    """Fraction of the limit that no probe may use."""
    fixed_bytes: int
    """Memory that does not depend on the batch: `a` of peak = a + b x local batch size."""
    bytes_per_sample: float
    """`b` of peak = a + b x local batch size."""
    probes: list[BatchProbe]
    out_of_memory: list[int] = []
    """Local batch sizes whose probe ran out of memory."""
    verified_steps: int
    """Steps with the chosen size, followed by a validation, after which it was accepted."""
    verified_peak_bytes: int
    seconds: float
    """Duration of the search."""


MANIFEST = "manifest.json"


def committed_path(folder: Path, step: int) -> Path:
    """Path of the committed checkpoint of `step`."""
    return folder / f"step-{step:08d}"


def committed_paths(folder: Path) -> list[Path]:
    """Folders of committed checkpoints, newest first; their content is not checked."""
    return [committed_path(folder, step) for step in checkpoint_steps(folder)]


class CheckpointFile(Record):
    """Size and checksum of one file of a checkpoint."""

    bytes: int
    sha256: str


class CheckpointTensor(Part, frozen=True):
    """One tensor of a checkpoint, of all ranks together."""

    dtype: str
    shape: tuple[int, ...]
    mesh: tuple[int, ...] = ()
    """Sizes of the mesh of all ranks that holds its shards; empty for a tensor that is stored whole."""
    placements: tuple[int | None, ...] = ()
    """By dimension of the mesh the dimension of the tensor that is split over it; null: replicas."""

    def chunk(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Offsets and sizes of the part that `rank` holds."""
        offsets, sizes = [0] * len(self.shape), list(self.shape)
        ranks = math.prod(self.mesh)
        for number, dimension in zip(self.mesh, self.placements, strict=True):
            ranks //= number
            if dimension is not None:
                length = -(-sizes[dimension] // number)
                start = min(sizes[dimension], rank // ranks % number * length)
                offsets[dimension] += start
                sizes[dimension] = min(length, sizes[dimension] - start)
        return tuple(offsets), tuple(sizes)


class CheckpointPositions(Part):
    """Tensors, or shards of tensors, at the same positions in the files of some ranks."""

    ranks: list[int]
    """The file of rank 0 is `__0_0.distcp`."""
    positions: dict[str, tuple[int, int]]
    """Offset and length in bytes, by name."""


class Checkpoint(Record):
    """`checkpoints/step-NNNNNNNN/manifest.json`: origin, tensors and files of a checkpoint."""

    step: int
    """Completed optimizer steps."""
    attempt: int
    """Number of the attempt that wrote it."""
    config_key: str
    """Config key of the run (see `RunRecord.config_key`)."""
    code_hash: str
    """Hash of the code that wrote it (see `Code.hash`)."""
    world_size: int
    global_batch_size: int
    batch_fit: BatchFit | None = None
    """The search of `train.local_batch_size: auto`; null for a given size."""
    seed: int
    dataset_sha256: str | None
    dataset_fingerprint: str | None
    """See `DatasetRecord.fingerprint`."""
    dataset: str
    valid_loss: float | None
    """Validation loss at this step; null without a validation at this step."""
    created: str
    torch: str
    files: dict[str, CheckpointFile]
    """Every other file of the checkpoint, by name."""
    tensors: dict[str, CheckpointTensor]
    positions: list[CheckpointPositions]


def refuse_missing(given: str) -> str | None:
    """The message for a `checkpoint.start_from` without a checkpoint; None if it has one.

    The message names the checkpoints nearby.
    """
    path, at = Path(given), f"checkpoint.start_from={given}"
    try:
        _refresh(path.parent)
        _refresh(path)
        if (path / MANIFEST).is_file():
            return None
        is_there, found = path.exists(), _nearby(path)
    except OSError as error:
        return f"{at} cannot be read: {error.strerror}"
    problem = f"holds no {MANIFEST}" if is_there else "does not exist"
    if not found:
        return f"{at} {problem}; give the folder of a checkpoint, as .../checkpoints/step-00000100"
    closest = "" if is_there else nearest(str(path), map(str, found))
    return f"{at} {problem}{closest or f'; the newest checkpoint there is {found[0]}'}"


def _refresh(folder: Path) -> None:
    """Open a folder, which NFS then compares with the server.

    A node otherwise answers from a cache, for up to a minute, that a new checkpoint does not exist.
    """
    with suppress(OSError), os.scandir(folder):
        pass


def _nearby(path: Path) -> list[Path]:
    """Checkpoints in the folder, in its `checkpoints`, or beside it; newest first."""
    for folder in (path, path / "checkpoints", path.parent):
        if folder.is_dir() and (found := committed_paths(folder)):
            return found
    return []
