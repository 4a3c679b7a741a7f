"""The folder of a run's checkpoints: names, commit, integrity, quarantine, retention. Without torch.

A checkpoint is written under a temporary name that carries the attempt, and committed by renaming the
finished folder. A committed checkpoint is never written to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.errors import ConfigError, message_of
from disttrain.records.checkpoint import MANIFEST, Checkpoint, CheckpointFile, committed_path, committed_paths
from disttrain.records.json_files import CorruptFile, read_json, write_text
from disttrain.records.run_directory import RunDir, rename_aside

_PARTIAL = re.compile(r"step-\d{8,}\.(?:a(\d+)\.tmp|deleted)")
_MISSING = (FileNotFoundError, NotADirectoryError)
"""Errors of a missing file. Any other error of the file system may be temporary, so it does not mark a
checkpoint as damaged."""


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
    write_text(temporary / MANIFEST, manifest.model_dump_json(indent=1))
    sync(temporary)
    target = committed_path(temporary.parent, manifest.step)
    os.rename(temporary, target)
    sync(target.parent)
    sync(target.parent.parent)  # the first checkpoint created the folder of checkpoints
    return target


def read_manifest(path: Path) -> Checkpoint:
    """The manifest of the checkpoint at `path`, after a check of its files' sizes.

    Raises `DamagedCheckpoint`, `ConfigError` for a manifest of other code, and `OSError`.
    """
    try:
        manifest = Checkpoint.model_validate(read_json((path / MANIFEST).resolve()))
    except ValidationError as error:
        raise ConfigError(
            f"{path} was written by other code ({MANIFEST}: {message_of(error)}); resume with that code, or "
            "move the checkpoint away"
        ) from None
    except (*_MISSING, CorruptFile) as error:
        raise DamagedCheckpoint(message_of(error)) from None
    verify_sizes(path, manifest)
    if (named := re.fullmatch(r"step-(\d+)", path.name)) and int(named[1]) != manifest.step:
        raise DamagedCheckpoint(f"{MANIFEST} is of step {manifest.step}")
    return manifest


def verify_sizes(path: Path, manifest: Checkpoint) -> None:
    """Raise `DamagedCheckpoint` if a file is missing or has another size, and `OSError`."""
    for name, file in manifest.files.items():
        try:
            size = os.stat(path / name).st_size
        except _MISSING as error:
            raise DamagedCheckpoint(message_of(error)) from None
        if size != file.bytes:
            raise DamagedCheckpoint(f"{name} has {size} bytes instead of {file.bytes}")


def mismatched_files(found: CommittedCheckpoint, names: Iterable[str]) -> list[str]:
    """The files among `names` whose SHA-256 differs from the manifest's, or that are missing.

    Raises `OSError`.
    """
    wrong = []
    for name in names:
        try:
            matches = file_digest(found.path / name) == found.manifest.files[name]
        except _MISSING:
            matches = False
        if not matches:
            wrong.append(name)
    return wrong


def file_digest(path: Path) -> CheckpointFile:
    """Size in bytes and SHA-256 of a file. Raises `OSError`."""
    with open(path, "rb") as file:
        hashed = hashlib.file_digest(file, "sha256").hexdigest()
        return CheckpointFile(bytes=os.fstat(file.fileno()).st_size, sha256=hashed)


def quarantine(path: Path) -> Path:
    """Rename a damaged checkpoint to `<name>.damaged` (`-2`, `-3`, ...), which no reader takes."""
    return rename_aside(path, "damaged")


def remove_partial(folder: Path, attempt: int) -> None:
    """Remove checkpoints that attempts up to this one left partly written or partly deleted.

    Call at the start of an attempt.
    """
    for path in folder.glob("step-*"):
        partial = _PARTIAL.fullmatch(path.name)
        if partial and int(partial[1] or 0) <= attempt:
            shutil.rmtree(path, ignore_errors=True)


def delete_old(folder: Path, keep: int, attempt: int | None = None) -> None:
    """Delete all but the `keep` newest checkpoints and the one with the lowest validation loss.

    With `attempt`, only checkpoints that this attempt wrote are counted and deleted. A checkpoint with an
    unreadable manifest is neither counted nor deleted: the next start of the run checks it. Raises `OSError`.
    """
    readable = []
    for path in committed_paths(folder):
        with contextlib.suppress(DamagedCheckpoint, ConfigError):
            readable.append(CommittedCheckpoint(path, read_manifest(path)))
    if attempt is not None:
        readable = [old for old in readable if old.manifest.attempt == attempt]
    losses = {old.path: old.manifest.valid_loss for old in readable if old.manifest.valid_loss is not None}
    best = min(losses, key=lambda path: losses[path], default=None)
    for old in readable[keep:]:
        if old.path != best:
            doomed = old.path.with_name(f"{old.path.name}.deleted")
            os.rename(old.path, doomed)  # first, so that no reader takes a half-deleted one for a damaged one
            shutil.rmtree(doomed, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to disk. Raises `OSError`."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
