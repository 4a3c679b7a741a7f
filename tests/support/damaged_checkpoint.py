"""Damage to a checkpoint, with checksums that show it or not."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from disttrain.checkpoint.folder import file_digest
from disttrain.records.json_files import read_json, write_json


class Harmful:
    """An object that creates `trace` when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.trace}",)


def damage(path: Path, how: str) -> None:
    """Damage the checkpoint at `path`. After `foreign code` and `no tensor`, its checksums still fit."""
    shard = next(path.glob("*.distcp"))
    if how == "bit":
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    elif how == "truncated":
        os.truncate(shard, shard.stat().st_size - 1)
    elif how == "manifest":
        (path / "manifest.json").write_text("{")
    elif how == "foreign code":
        (path / ".metadata").write_bytes(pickle.dumps(Harmful(path / "executed")))
        reseal(path)
    else:
        shard.write_bytes(bytes(shard.stat().st_size))
        reseal(path)


def reseal(path: Path) -> None:
    """Make the checksums of a manifest those of its files."""
    manifest = read_json(path / "manifest.json")
    manifest["files"] = {name: file_digest(path / name).model_dump() for name in manifest["files"]}
    write_json(path / "manifest.json", manifest)
