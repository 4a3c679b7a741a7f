"""The folder of `checkpoint.start_from`, checked before a job starts. Without torch."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from disttrain.checkpoint.folder import MANIFEST, committed_paths
from disttrain.errors import nearest


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
