"""Retention: which committed checkpoints are kept, and deletion of the others. Without torch."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from disttrain.checkpoint.folder import CommittedCheckpoint, DamagedCheckpoint
from disttrain.checkpoint.integrity import read_manifest
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import committed_paths


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
        readable = [each for each in readable if each.manifest.attempt == attempt]
    for old in beyond_retention(readable, keep):
        doomed = old.path.with_name(f"{old.path.name}.deleted")
        os.rename(old.path, doomed)  # first, so that no reader takes a half-deleted one for a damaged one
        shutil.rmtree(doomed, ignore_errors=True)


def beyond_retention(newest_first: list[CommittedCheckpoint], keep: int) -> list[CommittedCheckpoint]:
    """The checkpoints to delete: neither among the `keep` newest nor the one with the lowest validation
    loss."""
    validated = [each for each in newest_first if each.manifest.valid_loss is not None]
    best = min(validated, key=lambda each: each.manifest.valid_loss or 0.0, default=None)
    return [each for each in newest_first[max(1, keep) :] if each is not best]
