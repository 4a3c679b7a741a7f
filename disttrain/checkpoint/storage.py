"""Tensors to files and back, with planner, writer and reader of `torch.distributed.checkpoint` (DCP).

`dcp.async_save` calls collectives from a background thread. Here only the main thread does: it plans a save
with all ranks (`plan`), each rank writes its share alone (`write`), and rank 0 writes the metadata at a later
step boundary (`write_metadata`). The layout on disk is that of `dcp.save`.

Only tensors are saved, and only tensors are loaded (`safe_reader`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from disttrain.checkpoint.folder import DamagedCheckpoint
from disttrain.checkpoint.safe_reader import SafeReader
from disttrain.runtime.process_group import World

State = dict[str, Tensor]
"""Tensors of a checkpoint by name. Replicated tensors are equal on all ranks; others belong to one rank."""


@dataclass(frozen=True)
class PlannedSave:
    """A planned save: this rank's share, and on rank 0 the metadata of all shares."""

    writer: dcp.FileSystemWriter
    planner: dcp.DefaultSavePlanner
    plan: SavePlan
    metadata: Metadata | None


def plan(take: Callable[[], State], path: Path, world: World) -> PlannedSave:
    """Plan which rank writes which tensors into `path`; `take` copies the state to the host. A collective.

    Raises `FailedOnRank`.
    """
    writer = dcp.FileSystemWriter(path, overwrite=False)
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    is_rank0 = world.rank == 0

    def local() -> SavePlan:
        planner.set_up_planner(dict(take()), writer.storage_meta(), is_rank0)
        writer.set_up_storage_writer(is_rank0, rank=world.rank, use_collectives=True)
        return writer.prepare_local_plan(planner.create_local_plan())

    plans = world.on_all_ranks(local)

    def shares() -> tuple[list[SavePlan], Metadata] | None:
        if not is_rank0:  # one rank decides: the order of sets differs between processes
            return None
        shared, metadata = planner.create_global_plan(plans)
        return writer.prepare_global_plan(shared), metadata

    decided = world.on_all_ranks(shares)[0]
    assert decided is not None
    mine = planner.finish_plan(decided[0][world.rank])
    return PlannedSave(writer, planner, mine, decided[1] if is_rank0 else None)


def write(planned: PlannedSave) -> list[WriteResult]:
    """Write this rank's share and flush it to disk, without collectives."""
    return planned.writer.write_data(planned.plan, planned.planner).wait()


def write_metadata(planned: PlannedSave, results: Sequence[list[WriteResult]]) -> None:
    """Write `.metadata` on rank 0, from the results of all ranks."""
    assert planned.metadata is not None
    planned.writer.finish(planned.metadata, list(results))


def files_of(results: Sequence[WriteResult]) -> set[str]:
    """Names of the written files."""
    return {result.storage_data.relative_path for result in results}


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
