"""The folder of a run's checkpoints: names, commit, quarantine, removal of partial ones. Without torch.

A checkpoint is written under a temporary name that carries the attempt, and committed by renaming the
finished folder. A committed checkpoint is never written to.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.records.checkpoint import MANIFEST, Checkpoint, committed_path
from disttrain.records.json_files import create_exclusive, read_json, write_json
from disttrain.records.run_directory import RunDir, rename_aside

METADATA = ".metadata"
_OWNER = "owner.json"
_QUARANTINED = re.compile(r"step-\d{8,}\.damaged(-\d+)?")
_PARTIAL = re.compile(r"step-\d{8,}\.(?:a(\d+)\.tmp|deleted)")


class DamagedCheckpoint(ValueError):
    """A checkpoint whose files differ from its manifest; the message is one line with the reason."""


@dataclass(frozen=True)
class CommittedCheckpoint:
    """A committed checkpoint: its folder and its manifest."""

    path: Path
    manifest: Checkpoint


def checkpoint_folder(config: CheckpointConfig, run: RunDir) -> Path:
    """The folder of this run's checkpoints."""
    return Path(config.dir).resolve() / run.sweep / run.name if config.dir else run.checkpoints


def temporary_path(folder: Path, step: int, attempt: int) -> Path:
    """Path under which `attempt` writes the checkpoint of `step`."""
    return folder / f"step-{step:08d}.a{attempt:03d}.tmp"


def commit(temporary: Path, manifest: Checkpoint) -> Path:
    """Write the manifest into the finished folder `temporary` and rename it to the committed name.

    The rename is the commit: atomic, and it fails where the step has a checkpoint already. The other files
    must be on disk. Raises `OSError`.
    """
    write_json(temporary / MANIFEST, manifest.model_dump(mode="json"))
    sync(temporary)
    target = committed_path(temporary.parent, manifest.step)
    os.rename(temporary, target)
    sync(target.parent)
    sync(target.parent.parent)  # the first checkpoint created the folder of checkpoints
    return target


def quarantine(path: Path) -> Path:
    """Rename a damaged checkpoint to `<name>.damaged` (`-2`, `-3`, ...), which no reader takes."""
    return rename_aside(path, "damaged")


def has_quarantined(folder: Path) -> bool:
    """Whether a checkpoint is in quarantine."""
    return any(_QUARANTINED.fullmatch(name) for name in _names(folder))


def remove_partial(folder: Path, attempt: int) -> None:
    """Remove checkpoints that attempts up to this one left partly written or partly deleted.

    Call at the start of an attempt.
    """
    for name in _names(folder):
        partial = _PARTIAL.fullmatch(name)
        if partial and int(partial[1] or 0) <= attempt:
            shutil.rmtree(folder / name, ignore_errors=True)


def owner(folder: Path, run: Path) -> str:
    """Path of the run that owns a checkpoint folder outside its run directory; the first caller becomes
    owner."""
    path = folder / _OWNER
    create_exclusive(path, {"run": str(run)})
    return str(read_json(path).get("run"))


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def sync(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to disk. Raises `OSError`."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
