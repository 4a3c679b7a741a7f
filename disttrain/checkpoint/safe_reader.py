"""Reading a checkpoint without executing code from it, and verifying that it holds nothing but tensors.

The reader of `torch.distributed.checkpoint` (DCP) unpickles `.metadata` without restrictions. `SafeReader`
accepts only the classes that the metadata of tensors consists of.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from disttrain.checkpoint.folder import METADATA
from disttrain.errors import in_one_line
from disttrain.records.checkpoint import CheckpointFile
from disttrain.runtime import heartbeat


class UnreadableCheckpoint(ValueError):
    """Files of a checkpoint that cannot be loaded as tensors; the message is one line with the reason."""


class SafeReader(dcp.FileSystemReader):
    """Reads `.metadata` with an unpickler that cannot execute code."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata. Raises `UnreadableCheckpoint`, and `OSError` when the file system fails."""
        try:
            with open(Path(self.path) / METADATA, "rb") as file:
                metadata = _Unpickler(file).load()
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a damaged pickle raises errors of many types
            raise UnreadableCheckpoint(f"{METADATA} cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, Mapping):
            raise UnreadableCheckpoint(f"{METADATA} does not describe a checkpoint")
        for item in metadata.storage_data.values():
            if Path(item.relative_path).name != item.relative_path:
                raise UnreadableCheckpoint(f"{METADATA} names a file elsewhere: {item.relative_path!r}")
        return metadata


def content_problems(
    path: Path, names: Collection[str], files: Mapping[str, CheckpointFile]
) -> dict[str, str]:
    """The reason, in one line, for each file among `names` whose content cannot be loaded.

    `files` are all files of the manifest. Reads one tensor at a time. Raises `OSError`.
    """
    try:
        metadata = SafeReader(path).read_metadata()
        unlisted = {item.relative_path for item in metadata.storage_data.values()} - set(files)
        if unlisted:
            raise UnreadableCheckpoint(
                f"{METADATA} names files that are not in the manifest: {sorted(unlisted)}"
            )
    except UnreadableCheckpoint as error:
        return {METADATA: str(error)} if METADATA in names else {}
    problems: dict[str, str] = {}
    for index, item in metadata.storage_data.items():
        if item.relative_path in names and item.relative_path not in problems:
            try:
                _verify_tensor(path, index, metadata)
            except (OSError, MemoryError):
                raise
            except Exception as error:  # as above
                problems[item.relative_path] = f"{index.fqn} cannot be loaded: {in_one_line(error)}"
            heartbeat.checkpoint_part_written()
    return problems


def _verify_tensor(path: Path, index: MetadataIndex, metadata: Metadata) -> None:
    """Load one tensor, and raise an exception of any type unless it has shape and dtype of the metadata."""
    item, described = metadata.storage_data[index], metadata.state_dict_metadata[index.fqn]
    if not isinstance(described, TensorStorageMetadata) or item.transform_descriptors:
        raise UnreadableCheckpoint("only plain tensors are loaded")
    with open(path / item.relative_path, "rb") as file:
        file.seek(item.offset)
        tensor = torch.load(io.BytesIO(file.read(item.length)), map_location="cpu", weights_only=True)
    [chunk] = [each for each in described.chunks if each.offsets == (index.offset or each.offsets)]
    if (tensor.shape, tensor.dtype) != (chunk.sizes, described.properties.dtype):
        raise UnreadableCheckpoint(f"{tuple(tensor.shape)} of {tensor.dtype} is not the tensor of {METADATA}")


def _memory_format(kind: object, name: str) -> _MEM_FORMAT_ENCODING:
    """The member `name`, if `kind` is `_MEM_FORMAT_ENCODING`, the only enum in the metadata of tensors."""
    if kind is not _MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"getattr of {kind!r} is not allowed in {METADATA}")
    return _MEM_FORMAT_ENCODING[name]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # Python 3.11.0 to 3.11.3 pickle an enum member by it
            return _memory_format
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in {METADATA}")
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
"""Classes in `.metadata` of a checkpoint of tensors; all are plain data."""
