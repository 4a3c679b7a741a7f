"""Tensors to files and back, with planner, writer and reader of `torch.distributed.checkpoint` (DCP).

DCP plans a save on one rank, from the plans of all ranks, and each plan lists all replicated tensors. Here
each rank derives its share by itself (`own_share`) and writes it (`write`), without collectives. Rank 0
writes the metadata of all shares (`write_metadata`). The layout on disk is that of `dcp.save`. A sharded
tensor (DTensor) is saved by the ranks that hold its shards, and loads into whole or differently sharded ones.

Only tensors are saved, and only tensors are loaded (`safe_reader`).
"""

from __future__ import annotations

import heapq
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from disttrain.checkpoint.folder import METADATA, sync
from disttrain.checkpoint.safe_reader import SafeReader, UnreadableCheckpoint
from disttrain.checkpoint.shards import Chunk, local_shard, replicas
from disttrain.runtime import heartbeat

State = dict[str, Tensor]
"""Tensors by name."""


@dataclass(frozen=True)
class CapturedState:
    """The tensors of one rank that belong to a checkpoint. They share memory with the live state."""

    replicated: State
    """Tensors that all `holders` have under the same names, whole with the same values or sharded; each saves
    a share."""
    own: State
    """Tensors that this rank alone saves; no other rank has these names."""
    holders: tuple[int, ...] | None = None
    """World ranks with the same `replicated`, this one included; None: all ranks."""


@dataclass(frozen=True)
class Share:
    """The tensors that one rank saves."""

    tensors: State
    chunks: dict[str, Chunk] = field(default_factory=dict)
    """Positions of those that are shards; the others are whole."""


@dataclass(frozen=True)
class WrittenShare:
    """The share of one rank, on disk."""

    results: list[WriteResult]
    tensors: dict[str, TensorStorageMetadata]

    @property
    def files(self) -> set[str]:
        """Names of the written files."""
        return {result.storage_data.relative_path for result in self.results}


def assign(sizes: Mapping[str, int], world_size: int) -> dict[str, int]:
    """The rank that saves each tensor of `sizes`, in bytes: the largest first, each to the rank with least.

    Every rank computes the same result. No rank gets more than the mean and the largest tensor together.
    """
    loads = [(0, rank) for rank in range(world_size)]
    ranks = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, rank = loads[0]
        ranks[name] = rank
        heapq.heapreplace(loads, (load + sizes[name], rank))
    return ranks


def own_share(state: CapturedState, rank: int, world_size: int) -> Share:
    """The tensors and the shards of tensors that `rank` of `world_size` saves."""
    holders = range(world_size) if state.holders is None else state.holders
    sharded = {name: value for name, value in state.replicated.items() if isinstance(value, DTensor)}
    whole = {name: value for name, value in state.replicated.items() if name not in sharded}
    chosen = assign({name: value.nbytes for name, value in whole.items()}, len(holders))
    tensors = {name: value for name, value in whole.items() if holders[chosen[name]] == rank} | state.own
    chunks = {}
    for name in _written_here(sharded):
        shard, chunk = local_shard(sharded[name])
        if shard.numel():
            tensors[name], chunks[name] = shard, chunk
    return Share(tensors, chunks)


def _written_here(sharded: Mapping[str, DTensor]) -> list[str]:
    """Names of the shards that this rank saves, and not another rank with the same shard."""
    by_replicas: dict[tuple[int, int], dict[str, int]] = {}
    for name, value in sharded.items():
        by_replicas.setdefault(replicas(value), {})[name] = value.nbytes
    return [
        name
        for (index, number), sizes in by_replicas.items()
        for name, replica in assign(sizes, number).items()
        if replica == index
    ]


class _SharePlanner(dcp.DefaultSavePlanner):
    """Plans the share of one rank without the plans of the others."""

    def __init__(self, share: Share) -> None:
        super().__init__(flatten_state_dict=False)
        self._share = share
        self.set_up_planner(dict(share.tensors), is_coordinator=True)

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([self._item(name, value) for name, value in self._share.tensors.items()])
        return self.plan

    def _item(self, name: str, value: Tensor) -> WriteItem:
        chunk = self._share.chunks.get(name)
        offsets = chunk.offsets if chunk else torch.Size([0] * value.dim())
        data = TensorWriteData(
            chunk=ChunkStorageMetadata(offsets, value.shape),
            properties=TensorProperties.create_from_tensor(value),
            size=chunk.whole if chunk else value.shape,
        )
        kind = WriteItemType.SHARD if chunk else WriteItemType.TENSOR
        return WriteItem(MetadataIndex(name, offsets), kind, tensor_data=data)

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._share.tensors[index.fqn]

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        """The data of `write_item`, which DCP writes next; the data before it are written."""
        heartbeat.checkpoint_part_written()
        return super().resolve_data(write_item)


def plan_share(share: Share) -> tuple[dcp.DefaultSavePlanner, SavePlan, dict[str, TensorStorageMetadata]]:
    """DCP's planner, plan and metadata for the tensors of one rank alone."""
    planner = _SharePlanner(share)
    plan = planner.create_local_plan()
    metadata = {}
    for item in plan.items:
        data = item.tensor_data
        assert data is not None, "every item is a tensor"
        metadata[item.index.fqn] = TensorStorageMetadata(data.properties, data.size, [data.chunk])
    return planner, plan, metadata


def write(share: Share, path: Path, rank: int) -> WrittenShare:
    """Write the tensors of `rank` into the folder `path` and flush them to disk. Raises `OSError`."""
    # DCP would flush each file to disk before the end of the file has left Python's buffer
    writer = dcp.FileSystemWriter(path, overwrite=False, sync_files=False)
    writer.set_up_storage_writer(False, rank=rank, use_collectives=False)  # the file is named for the rank
    planner, plan, metadata = plan_share(share)
    results = writer.write_data(writer.prepare_local_plan(plan), planner).wait()
    written = WrittenShare(results, metadata)
    heartbeat.checkpoint_part_written()
    for name in written.files:
        sync(path / name)
        heartbeat.checkpoint_part_written()
    return written


def write_metadata(path: Path, shares: Sequence[WrittenShare]) -> None:
    """Write `.metadata` of the shares of all ranks and flush it to disk. Raises `OSError`."""
    merged: dict[str, TensorStorageMetadata] = {}
    for share in shares:
        for name, tensor in share.tensors.items():
            if name not in merged:
                merged[name] = replace(tensor, chunks=[])
            merged[name].chunks.extend(tensor.chunks)
    metadata = Metadata(dict(merged))
    dcp.FileSystemWriter(path, sync_files=False).finish(metadata, [share.results for share in shares])
    sync(path / METADATA)


def shapes(path: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of each tensor in a checkpoint. Raises `UnreadableCheckpoint`."""
    found = SafeReader(path).read_metadata().state_dict_metadata
    return {
        name: (item.size, item.properties.dtype)
        for name, item in found.items()
        if isinstance(item, TensorStorageMetadata)
    }


def load_tensors(state: State, path: Path) -> None:
    """Fill the tensors of `state` in place from the checkpoint, without collectives.

    Raises `UnreadableCheckpoint`.
    """
    reader = SafeReader(path)
    metadata = reader.read_metadata()
    planner = _TensorsOnly(flatten_state_dict=False)
    planner.set_up_planner(dict(state), metadata, True)
    reader.set_up_storage_reader(metadata, True, use_collectives=False)
    planned: LoadPlan = planner.finish_plan(planner.create_local_plan())
    with torch.no_grad():
        reader.read_data(planned, planner).wait()


class _TensorsOnly(dcp.DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise UnreadableCheckpoint(f"{read_item.dest_index.fqn} is not a tensor; only tensors are loaded")
