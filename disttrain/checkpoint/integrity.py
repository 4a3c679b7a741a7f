"""Integrity of a checkpoint: its manifest, and sizes and checksums of its files. Without torch."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from disttrain.checkpoint.folder import METADATA, DamagedCheckpoint
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import MANIFEST, Checkpoint, CheckpointFile
from disttrain.records.json_files import CorruptFile, read_json

_MISSING = (FileNotFoundError, NotADirectoryError)
"""Errors of a missing file. Any other error of the file system may be temporary, so it does not mark a
checkpoint as damaged."""
_OTHER_FIELDS = ("missing", "extra_forbidden")
"""Validation errors of a manifest whose set of fields differs from today's."""


def read_manifest(path: Path) -> Checkpoint:
    """The manifest of the checkpoint at `path`, after a check of its files' sizes.

    Raises `DamagedCheckpoint`, `ConfigError` for a manifest of other code, and `OSError`.
    """
    try:
        manifest = Checkpoint.model_validate(read_json(path / MANIFEST, follow_links=True))
        sizes = {name: os.stat(path / name).st_size for name in manifest.files}
    except ValidationError as error:
        fields = {str(fault["loc"][0]) for fault in error.errors() if fault["type"] in _OTHER_FIELDS}
        if fields:
            differing = ", ".join(sorted(fields))
            raise ConfigError(
                f"{path} was written by other code: {MANIFEST} differs in its fields ({differing}); "
                "resume with that code, or move the checkpoint away"
            ) from None
        raise DamagedCheckpoint(" ".join(str(error).split())) from None
    except (*_MISSING, CorruptFile) as error:
        raise DamagedCheckpoint(" ".join(str(error).split())) from None
    for name, size in sizes.items():
        if os.path.basename(name) != name:
            raise DamagedCheckpoint(f"{MANIFEST} names a file elsewhere: {name!r}")
        if size != manifest.files[name].bytes:
            raise DamagedCheckpoint(f"{name} has {size} bytes instead of {manifest.files[name].bytes}")
    if METADATA not in sizes:
        raise DamagedCheckpoint(f"{MANIFEST} does not list {METADATA}")
    named = re.fullmatch(r"step-(\d+)", path.name)
    if named and int(named[1]) != manifest.step:
        raise DamagedCheckpoint(f"{MANIFEST} is of step {manifest.step}")
    return manifest


def mismatched_files(path: Path, manifest: Checkpoint, names: Iterable[str]) -> list[str]:
    """The files among `names` whose SHA-256 differs from the manifest's, or that are missing.

    Raises `OSError`.
    """
    wrong = []
    for name in names:
        try:
            found = file_digest(path / name).sha256
        except _MISSING:
            found = ""
        if found != manifest.files[name].sha256:
            wrong.append(name)
    return wrong


def file_digest(path: Path) -> CheckpointFile:
    """Size in bytes and SHA-256 of a file. Raises `OSError`."""
    with open(path, "rb") as file:
        hashed = hashlib.file_digest(file, "sha256").hexdigest()
        return CheckpointFile(bytes=os.fstat(file.fileno()).st_size, sha256=hashed)
