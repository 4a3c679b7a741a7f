"""Files of a checkpoint in the layout of `torch.distributed.checkpoint` (DCP), by its writer and its reader.

Each rank writes the tensors of its share into one file, without collectives. The manifest describes all
tensors, and DCP's metadata are built from it. `.metadata` is written for `dcp.load` alone, and never read
here: its reader unpickles it without restrictions. Entries of the files are loaded as tensors only.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import WriteItem

from disttrain.checkpoint.folder import CommittedCheckpoint, sync
from disttrain.checkpoint.share import Layout, State
from disttrain.records.checkpoint import Checkpoint, CheckpointFile, CheckpointPositions, CheckpointTensor
from disttrain.runtime.rank_heartbeat import heartbeat

METADATA = ".metadata"
Positions = dict[str, tuple[int, int]]
"""Offset and length in bytes of each tensor in the file of a rank."""


def file_of(rank: int) -> str:
    """Name of the file of `rank`, as DCP's writer chooses it."""
    return f"__{rank}_0.distcp"


class _SavePlanner(dcp.DefaultSavePlanner):
    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """The data of `write_item`, which DCP writes next; the data before it are written."""
        heartbeat.checkpoint_part_written()
        return super().resolve_data(write_item)


def write(tensors: State, path: Path, rank: int) -> Positions:
    """Write the tensors of `rank` into the folder `path` and flush them to disk. Raises `OSError`."""
    # DCP would flush a file to disk before its end has left Python's buffer, and copying ahead, on a machine
    # with a GPU, it would sort the tensors
    writer = dcp.FileSystemWriter(path, overwrite=False, sync_files=False, per_thread_copy_ahead=0)
    writer.set_up_storage_writer(False, rank=rank, use_collectives=False)
    planner = _SavePlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(tensors), is_coordinator=True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    results = writer.write_data(plan, planner).wait()
    heartbeat.checkpoint_part_written()
    sync(path / file_of(rank))
    heartbeat.checkpoint_part_written()
    return {r.index.fqn: (r.storage_data.offset, r.storage_data.length) for r in results}


@dataclass(frozen=True)
class WrittenShare:
    """The share of one rank, on disk."""

    tensors: dict[str, CheckpointTensor]
    positions: Positions
    file: CheckpointFile
    layout: Layout


def describe_shares(shares: Sequence[WrittenShare]) -> dict[str, object]:
    """The fields `tensors`, `positions` and `files` of a manifest, from the shares by rank.

    Shards have equal positions on most ranks, so that the manifest grows with the ranks only by their files
    and by the tensors that each of them has alone.
    """
    tensors = {name: tensor for share in shares for name, tensor in share.tensors.items()}
    ranks_at: dict[tuple[tuple[str, tuple[int, int]], ...], list[int]] = {}
    for rank, share in enumerate(shares):
        for sharded in (True, False):
            part = tuple(at for at in share.positions.items() if bool(tensors[at[0]].mesh) == sharded)
            ranks_at.setdefault(part, []).append(rank)
    return {
        "tensors": tensors,
        "positions": [
            CheckpointPositions(ranks=ranks, positions=dict(at)) for at, ranks in ranks_at.items() if at
        ],
        "files": {file_of(rank): share.file for rank, share in enumerate(shares)},
    }


def write_metadata(path: Path, manifest: Checkpoint) -> None:
    """Write `.metadata`, which `dcp.load` reads, and flush it to disk. Raises `OSError`."""
    with open(path / METADATA, "wb") as file:
        pickle.dump(metadata(manifest), file)
    sync(path / METADATA)


def metadata(manifest: Checkpoint) -> Metadata:
    """DCP's metadata of all tensors in a checkpoint."""
    tensors: dict[str, TensorStorageMetadata] = {
        name: TensorStorageMetadata(TensorProperties(dtype_of(tensor)), torch.Size(tensor.shape), [])
        for name, tensor in manifest.tensors.items()
    }
    stored = {}
    for name, rank, (offset, length) in _stored(manifest):
        chunk = _chunk(manifest.tensors[name], rank)
        tensors[name].chunks.append(chunk)
        stored[MetadataIndex(name, chunk.offsets)] = _StorageInfo(file_of(rank), offset, length)
    return Metadata(dict(tensors), storage_data=stored)


def _stored(manifest: Checkpoint) -> Iterator[tuple[str, int, tuple[int, int]]]:
    """Name, rank and position of each tensor or shard in a file."""
    for part in manifest.positions:
        for rank in part.ranks:
            for name, position in part.positions.items():
                yield name, rank, position


@functools.lru_cache(65536)
def _chunk(tensor: CheckpointTensor, rank: int) -> ChunkStorageMetadata:
    offsets, sizes = tensor.chunk(rank)
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def dtype_of(tensor: CheckpointTensor) -> torch.dtype:
    """The dtype of an entry in the manifest."""
    dtype: Any = getattr(torch, tensor.dtype)
    assert isinstance(dtype, torch.dtype), "the manifest names a dtype of torch"
    return dtype


def load_tensors(state: State, found: CommittedCheckpoint) -> None:
    """Fill the tensors of `state` in place from the checkpoint, without collectives."""
    described = metadata(found.manifest)
    reader = dcp.FileSystemReader(found.path)
    reader.set_up_storage_reader(described, True, use_collectives=False)
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(state), described, True)
    with torch.no_grad():
        reader.read_data(planner.create_local_plan(), planner).wait()


def verify_content(found: CommittedCheckpoint, names: Collection[str]) -> None:
    """Load the tensors in the files `names`, one at a time. Raises an exception of any type."""
    for name, rank, (offset, length) in _stored(found.manifest):
        if file_of(rank) in names:
            with open(found.path / file_of(rank), "rb") as file:
                file.seek(offset)
                content = io.BytesIO(file.read(length))
            tensor = torch.load(content, map_location="cpu", weights_only=True)
            described = found.manifest.tensors[name]
            if (tensor.dtype, tensor.shape) != (dtype_of(described), described.chunk(rank)[1]):
                raise ValueError(f"{name} in {file_of(rank)} is not the tensor of the manifest")
            heartbeat.checkpoint_part_written()
