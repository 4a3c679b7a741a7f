"""The folder of a run's checkpoints: names, checksums, commit, quarantine, retention. Without torch.

A checkpoint is written under a temporary name that carries the attempt, and committed by renaming the
finished folder; nothing is ever written into a committed one.
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

from disttrain.errors import ConfigError
from disttrain.records.checkpoint import Checkpoint, CheckpointFile
from disttrain.records.json_files import CorruptFile, create_exclusive, read_json, write_json
from disttrain.records.run_directory import checkpoint_steps

MANIFEST = "manifest.json"
METADATA = ".metadata"
_OWNER = "owner.json"
_STEP = re.compile(r"step-(\d{8,})")
_LEFTOVER = re.compile(r"step-\d{8,}\.(?:a(\d+)\.tmp|deleted)")
_MISSING = (FileNotFoundError, NotADirectoryError)
"""What a file system says of a file that is not there. Whatever else it says may be of the moment: a
checkpoint that cannot be read right now is not taken for damaged."""


class DamagedCheckpoint(ValueError):
    """A checkpoint that cannot be trusted; the message says why, in one line."""


@dataclass(frozen=True)
class CommittedCheckpoint:
    """A committed checkpoint."""

    path: Path
    manifest: Checkpoint


def committed_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def temporary_path(folder: Path, step: int, attempt: int) -> Path:
    return folder / f"step-{step:08d}.a{attempt:03d}.tmp"


def committed(folder: Path) -> list[Path]:
    """Folders of committed checkpoints, newest first, whatever they hold."""
    return [committed_path(folder, step) for step in checkpoint_steps(folder)]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def read_manifest(path: Path) -> Checkpoint:
    """What the checkpoint at `path` is, its files there with the right sizes.

    Raises `DamagedCheckpoint`, `ConfigError` for one that other code wrote, and `OSError`.
    """
    try:
        found = read_json(path / MANIFEST)
        manifest = Checkpoint.model_validate(found)
        sizes = {name: os.stat(path / name).st_size for name in manifest.files}
    except ValidationError as error:
        faults = {str(fault["loc"][0]) for fault in error.errors() if fault["type"] in _OTHER_FIELDS}
        if faults:
            raise ConfigError(
                f"{path} was written by other code, of which this one does not know {MANIFEST}'s "
                f"{', '.join(sorted(faults))}: go on with that code, or move it away"
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
        raise DamagedCheckpoint(f"{MANIFEST} says nothing of {METADATA}")
    named = re.fullmatch(r"step-(\d+)", path.name)
    if named and int(named[1]) != manifest.step:
        raise DamagedCheckpoint(f"{MANIFEST} is of step {manifest.step}")
    return manifest


_OTHER_FIELDS = ("missing", "extra_forbidden")


def mismatched_files(path: Path, manifest: Checkpoint, names: Iterable[str]) -> list[str]:
    """Which of the files `names` do not hold what the manifest says. Raises `OSError`."""
    wrong = []
    for name in names:
        try:
            found = digest(path / name).sha256
        except _MISSING:
            found = ""
        if found != manifest.files[name].sha256:
            wrong.append(name)
    return wrong


def digest(path: Path) -> CheckpointFile:
    with open(path, "rb") as file:
        hashed = hashlib.file_digest(file, "sha256").hexdigest()
        return CheckpointFile(bytes=os.fstat(file.fileno()).st_size, sha256=hashed)


def commit(temporary: Path, manifest: Checkpoint) -> Path:
    """Make the finished folder `temporary` the checkpoint of its step. Raises `OSError`.

    Its other files are on disk already. The rename is the commit, and refuses to replace a checkpoint.
    """
    write_json(temporary / MANIFEST, manifest.model_dump(mode="json"))
    _sync(temporary)
    target = committed_path(temporary.parent, manifest.step)
    os.rename(temporary, target)
    _sync(target.parent)
    return target


def quarantine(path: Path) -> Path:
    """Set a damaged checkpoint aside, under a name that no reader takes."""
    target = path.with_name(f"{path.name}.damaged")
    count = 1
    while target.exists():
        count += 1
        target = path.with_name(f"{path.name}.damaged-{count}")
    os.rename(path, target)
    return target


def prune(folder: Path, keep: int) -> None:
    """Delete all but the `keep` newest checkpoints and the one with the best validation.

    One whose manifest cannot be read is neither counted nor touched: it is for the next start to judge.
    """
    whole = []
    for path in committed(folder):
        with contextlib.suppress(DamagedCheckpoint, ConfigError):
            whole.append(CommittedCheckpoint(path, read_manifest(path)))
    for old in beyond_retention(whole, keep):
        doomed = old.path.with_name(f"{old.path.name}.deleted")
        os.rename(old.path, doomed)  # first, so that a half-deleted one is never taken for damaged
        shutil.rmtree(doomed, ignore_errors=True)


def beyond_retention(newest_first: list[CommittedCheckpoint], keep: int) -> list[CommittedCheckpoint]:
    """Those to delete: not among the `keep` newest, not the best validated one."""
    validated = [kept for kept in newest_first if kept.manifest.valid_loss is not None]
    best = min(validated, key=lambda kept: kept.manifest.valid_loss or 0.0, default=None)
    return [kept for kept in newest_first[max(1, keep) :] if kept is not best]


def remove_partial(folder: Path, attempt: int) -> None:
    """Remove what attempts before this one began to write, or to delete. For the start of an attempt."""
    for name in _names(folder):
        left = _LEFTOVER.fullmatch(name)
        if left and int(left[1] or 0) <= attempt:
            shutil.rmtree(folder / name, ignore_errors=True)


def owner(folder: Path, run: Path) -> str:
    """Whose checkpoints lie in a folder outside of a run directory: the run that came first, or this one."""
    path = folder / _OWNER
    create_exclusive(path, {"run": str(run)})
    return str(read_json(path).get("run"))


def _sync(folder: Path) -> None:
    """Have the names in `folder` on disk, not only its files' content."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
