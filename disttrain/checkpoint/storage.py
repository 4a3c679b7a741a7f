"""Tensors to files and back, by the planner, the writer and the reader of `torch.distributed.checkpoint`.

`dcp.async_save` talks to the other ranks from a background thread. Here only the main thread does: it
plans a save with them (`plan`), each rank writes its share alone (`write`), and what was written is
gathered at a later step boundary (`finish`). The layout on disk is that of `dcp.save`.

Only tensors are saved. A reader of DCP unpickles `.metadata`, and what is no tensor, without any limit;
this one takes the few classes that a checkpoint of tensors is made of, and nothing else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from disttrain.checkpoint.folder import DamagedCheckpoint
from disttrain.runtime.process_group import World

State = dict[str, Tensor]
"""What a checkpoint holds, by name: of replicated tensors each rank has the same, of others its own."""


@dataclass(frozen=True)
class PlannedSave:
    """A save that all ranks have agreed on: what this rank writes, and on rank 0 what there is in all."""

    writer: dcp.FileSystemWriter
    planner: dcp.DefaultSavePlanner
    plan: SavePlan
    metadata: Metadata | None


def plan(take: Callable[[], State], path: Path, world: World) -> PlannedSave:
    """All ranks together: share out who writes what of a state into `path`; `take` copies it to the host.

    Raises `FailedOnRank`.
    """
    writer = dcp.FileSystemWriter(path, overwrite=False)
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    leads = world.rank == 0

    def local() -> SavePlan:
        planner.set_up_planner(dict(take()), writer.storage_meta(), leads)
        writer.set_up_storage_writer(leads, rank=world.rank, use_collectives=True)
        return writer.prepare_local_plan(planner.create_local_plan())

    plans = world.on_all_ranks(local)

    def shares() -> tuple[list[SavePlan], Metadata] | None:
        if not leads:  # one rank decides: the order of sets differs between processes
            return None
        shared, metadata = planner.create_global_plan(plans)
        return writer.prepare_global_plan(shared), metadata

    decided = world.on_all_ranks(shares)[0]
    assert decided is not None
    mine = planner.finish_plan(decided[0][world.rank])
    return PlannedSave(writer, planner, mine, decided[1] if leads else None)


def write(planned: PlannedSave) -> list[WriteResult]:
    """Write this rank's share, through to the disk. Talks to nobody."""
    return planned.writer.write_data(planned.plan, planned.planner).wait()


def finish(planned: PlannedSave, results: Sequence[list[WriteResult]]) -> None:
    """Rank 0, with what all ranks have written: write `.metadata`."""
    assert planned.metadata is not None
    planned.writer.finish(planned.metadata, list(results))


def files_of(results: Sequence[WriteResult]) -> set[str]:
    return {result.storage_data.relative_path for result in results}


def shapes(path: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and type of each tensor in a checkpoint. Raises `DamagedCheckpoint`."""
    found = SafeReader(path).read_metadata().state_dict_metadata
    return {
        name: (item.size, item.properties.dtype)
        for name, item in found.items()
        if isinstance(item, TensorStorageMetadata)
    }


def load(state: State, path: Path) -> None:
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
        raise DamagedCheckpoint(f"{read_item.dest_index.fqn} is no tensor, and nothing else is loaded")


class SafeReader(dcp.FileSystemReader):
    """Reads `.metadata` without running what may be hidden in it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        try:
            with open(Path(self.path) / ".metadata", "rb") as file:
                metadata = _Unpickler(file).load()
        except (pickle.UnpicklingError, OSError, EOFError, AttributeError, TypeError, ValueError) as error:
            raise DamagedCheckpoint(f".metadata cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, Mapping):
            raise DamagedCheckpoint(".metadata does not describe a checkpoint")
        for item in metadata.storage_data.values():
            if Path(item.relative_path).name != item.relative_path:
                raise DamagedCheckpoint(f".metadata names a file elsewhere: {item.relative_path!r}")
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} has no business there")
        return super().find_class(module, name)


_ALLOWED = {
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13 on
    *(("torch", name) for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
}
"""What `.metadata` of a checkpoint of tensors is made of: plain data, every one of them."""
