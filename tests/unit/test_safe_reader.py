"""`.metadata` as other versions of Python pickle it, and hostile forms of it."""

from __future__ import annotations

import enum
import io
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from disttrain.checkpoint.safe_reader import SafeReader, UnreadableCheckpoint


class _OlderPickler(pickle.Pickler):
    """Pickles enum members as Python 3.11.0 to 3.11.3 do."""

    def reducer_override(self, value: object) -> object:
        return (getattr, (type(value), value.name)) if isinstance(value, enum.Enum) else NotImplemented


class _GetAttribute:
    """Unpickles as `getattr(owner, name)`."""

    def __init__(self, owner: object, name: str) -> None:
        self.arguments = (owner, name)

    def __reduce__(self) -> tuple[object, tuple[object, str]]:
        return getattr, self.arguments


def test_metadata_that_names_getattr_for_an_enum_member_is_read(tmp_path: Path) -> None:
    dcp.save({"a": torch.arange(3)}, checkpoint_id=tmp_path, no_dist=True)
    with open(tmp_path / ".metadata", "rb") as file:
        metadata = pickle.load(file)
    pickled = io.BytesIO()
    _OlderPickler(pickled, protocol=4).dump(metadata)
    assert b"getattr" in pickled.getvalue()
    (tmp_path / ".metadata").write_bytes(pickled.getvalue())
    assert SafeReader(tmp_path).read_metadata().state_dict_metadata == metadata.state_dict_metadata


@pytest.mark.parametrize(
    "hostile",
    [
        _GetAttribute(Metadata, "__init__"),
        _GetAttribute(_MEM_FORMAT_ENCODING, "__class__"),
        _GetAttribute(_MEM_FORMAT_ENCODING, "mro"),
        _GetAttribute(torch.Size, "__subclasses__"),
        _GetAttribute(_GetAttribute(_MEM_FORMAT_ENCODING, "__class__"), "mro"),
    ],
)
def test_getattr_of_anything_else_is_refused(tmp_path: Path, hostile: _GetAttribute) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(hostile))
    with pytest.raises(UnreadableCheckpoint):
        SafeReader(tmp_path).read_metadata()
