"""Tensors to files and back, with planner, writer and reader of `torch.distributed.checkpoint` (DCP).

DCP plans a save on one rank, from the plans of all ranks, and each plan lists all replicated tensors. Here
each rank derives its share by itself (`own_share`) and writes it (`write`), without collectives. Rank 0
writes the metadata of all shares (`write_metadata`). The layout on disk is that of `dcp.save`.

Only tensors are saved, and only tensors are loaded (`safe_reader`).
"""

from __future__ import annotations

import heapq
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import STORAGE_TYPES, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from disttrain.checkpoint.folder import METADATA, DamagedCheckpoint, sync
from disttrain.checkpoint.safe_reader import SafeReader
from disttrain.runtime import heartbeat

State = dict[str, Tensor]
"""Tensors by name."""


@dataclass(frozen=True)
class CapturedState:
    """The tensors of one rank that belong to a checkpoint. They share memory with the live state."""

    replicated: State
    """Tensors that all `holders` have under the same names, with the same values; each saves a share."""
    own: State
    """Tensors that this rank alone saves; no other rank has these names."""
    holders: tuple[int, ...] | None = None
    """World ranks with the same `replicated`, this one included; None: all ranks."""


@dataclass(frozen=True)
class WrittenShare:
    """The share of one rank, on disk."""

    results: list[WriteResult]
    tensors: dict[str, STORAGE_TYPES]

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


def own_share(state: CapturedState, rank: int, world_size: int) -> State:
    """The tensors that `rank` of `world_size` saves."""
    holders = range(world_size) if state.holders is None else state.holders
    chosen = assign({name: value.nbytes for name, value in state.replicated.items()}, len(holders))
    own = {name: value for name, value in state.replicated.items() if holders[chosen[name]] == rank}
    return own | state.own


class _WatchedPlanner(dcp.DefaultSavePlanner):
    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        """The data of `write_item`, which DCP writes next; the data before it are written."""
        heartbeat.checkpoint_part_written()
        return super().resolve_data(write_item)


def plan_share(share: State) -> tuple[dcp.DefaultSavePlanner, SavePlan, Metadata]:
    """DCP's planner, plan and metadata for the tensors of one rank alone."""
    planner = _WatchedPlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(share), is_coordinator=True)
    [plan], metadata = planner.create_global_plan([planner.create_local_plan()])
    return planner, planner.finish_plan(plan), metadata


def write(share: State, path: Path, rank: int) -> WrittenShare:
    """Write the tensors of `rank` into the folder `path` and flush them to disk. Raises `OSError`."""
    # DCP would flush each file to disk before the end of the file has left Python's buffer
    writer = dcp.FileSystemWriter(path, overwrite=False, sync_files=False)
    writer.set_up_storage_writer(False, rank=rank, use_collectives=False)  # the file is named for the rank
    planner, plan, metadata = plan_share(share)
    results = writer.write_data(writer.prepare_local_plan(plan), planner).wait()
    written = WrittenShare(results, metadata.state_dict_metadata)
    heartbeat.checkpoint_part_written()
    for name in written.files:
        sync(path / name)
        heartbeat.checkpoint_part_written()
    return written


def write_metadata(path: Path, shares: Sequence[WrittenShare]) -> None:
    """Write `.metadata` of the shares of all ranks and flush it to disk. Raises `OSError`."""
    metadata = Metadata({name: tensor for share in shares for name, tensor in share.tensors.items()})
    dcp.FileSystemWriter(path, sync_files=False).finish(metadata, [share.results for share in shares])
    sync(path / METADATA)


def shapes(path: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of each tensor in a checkpoint. Raises `DamagedCheckpoint`."""
    found = SafeReader(path).read_metadata().state_dict_metadata
    return {
        name: (item.size, item.properties.dtype)
        for name, item in found.items()
        if isinstance(item, TensorStorageMetadata)
    }


def load_tensors(state: State, path: Path) -> None:
    """Fill the tensors of `state` in place from the checkpoint, without collectives.

    Raises `DamagedCheckpoint`.
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
        raise DamagedCheckpoint(f"{read_item.dest_index.fqn} is not a tensor; only tensors are loaded")
