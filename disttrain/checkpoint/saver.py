"""Taking checkpoints: training waits for the copy to host memory, but not for the disk.

All ranks call the methods of their `CheckpointSaver` at the same steps. One background thread of each rank
writes its files, without collectives. The commit follows at a later step boundary, when all ranks are known
to have finished. A checkpoint that fails costs a line in the log, never the run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from torch.distributed.checkpoint.storage import WriteResult

from disttrain.checkpoint import folder as folders
from disttrain.checkpoint import integrity, retention, storage
from disttrain.checkpoint.state_tensors import copy_to_host
from disttrain.checkpoint.storage import PlannedSave, State
from disttrain.config.keys_and_defaults import CheckpointConfig
from disttrain.errors import in_one_line
from disttrain.records.checkpoint import Checkpoint, CheckpointFile
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.runtime.process_group import FailedOnRank, World


@dataclass(frozen=True)
class Written:
    """Files of a checkpoint that one rank has written, or the problem in one line."""

    results: list[WriteResult]
    files: dict[str, CheckpointFile]
    problem: str | None = None


@dataclass(frozen=True)
class _PendingSave:
    path: Path
    manifest: Checkpoint
    """Manifest without its files."""
    planned: PlannedSave
    written: Future[Written]


class CheckpointSaver:
    """Takes checkpoints. All ranks call its methods at the same steps.

    Parameters
    ----------
    capture : returns this rank's state
    manifest : manifest of this attempt's checkpoints (`build_manifest`)
    step : step of the checkpoint that training started from, or 0
    """

    def __init__(
        self,
        folder: Path,
        config: CheckpointConfig,
        attempt: Attempt,
        world: World,
        capture: Callable[[], State],
        manifest: Checkpoint,
        step: int,
    ) -> None:
        self.folder = folder
        self.step = step
        """The newest step that was saved (committed or not), or that training started from."""
        self.committed_step: int | None = None
        self.failed = 0
        self._config = config
        self._attempt = attempt
        self._world = world
        self._capture = capture
        self._manifest = manifest
        self._pending_save: _PendingSave | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")

    @property
    def pending(self) -> bool:
        """Whether a checkpoint waits for its commit; the same on all ranks."""
        return self._pending_save is not None

    @property
    def writing(self) -> bool:
        """Whether this rank is still writing files."""
        return self._pending_save is not None and not self._pending_save.written.done()

    def save(self, step: int, valid_loss: float | None) -> None:
        """Take a checkpoint of the state after `step`.

        Returns after the copy to host memory; the files are written in the background unless
        `checkpoint.asynchronous` is false.
        """
        self.commit()
        self.step = step
        path = folders.temporary_path(self.folder, step, self._attempt.number)
        now = datetime.now(UTC).isoformat()
        manifest = self._manifest.model_copy(update={"step": step, "valid_loss": valid_loss, "created": now})
        state = self._capture()
        try:
            planned = storage.plan(lambda: copy_to_host(state), path, self._world)
        except FailedOnRank as error:
            self._fail(path, step, str(error))
            return
        written = self._thread.submit(_write, planned, path, self._attempt.steps(self._world.rank))
        self._pending_save = _PendingSave(path, manifest, planned, written)
        if not self._config.asynchronous:
            self.commit()

    def commit(self) -> None:
        """Commit the pending checkpoint, if any; waits until all ranks have written it."""
        if self._pending_save is None:
            return
        now, self._pending_save = self._pending_save, None
        shares = self._world.all_gather_object(now.written.result())
        if self._world.rank:
            return
        step = now.manifest.step
        problems = [f"rank {rank}: {share.problem}" for rank, share in enumerate(shares) if share.problem]
        if problems:
            self._fail(now.path, step, problems[0])
            return
        try:
            storage.write_metadata(now.planned, [share.results for share in shares])
            files = {name: file for share in shares for name, file in share.files.items()}
            files[folders.METADATA] = integrity.file_digest(now.path / folders.METADATA)
            for name, file in files.items():
                if os.stat(now.path / name).st_size != file.bytes:
                    raise OSError(f"{name} differs in size from the bytes written")
            if self._attempt.superseded_by() is not None:
                raise OSError("a later attempt of this run has begun")
            folders.commit(now.path, now.manifest.model_copy(update={"files": files}))
        except OSError as error:
            self._fail(now.path, step, f"rank 0: {error}")
            return
        self.committed_step = step
        log.info("checkpoint", step=step, bytes=sum(file.bytes for file in files.values()))
        self._thread.submit(_delete_old, self.folder, self._config.keep, self._attempt)

    def close(self) -> None:
        """Commit the pending checkpoint, and wait for the background thread."""
        self.commit()
        self._thread.shutdown()

    def _fail(self, path: Path, step: int, problem: str) -> None:
        self.failed += 1
        if self._world.rank == 0:
            log.error("checkpoint failed", step=step, problem=problem)
            self._thread.submit(shutil.rmtree, path, True)


def _write(planned: PlannedSave, path: Path, step_records: Path) -> Written:
    try:
        results = storage.write(planned)
        files = {name: integrity.file_digest(path / name) for name in storage.files_of(results)}
        with open(
            step_records, "rb"
        ) as records:  # the steps in the checkpoint are not repeated, so their records must be on disk
            os.fsync(records.fileno())
        return Written(results, files)
    except Exception as error:
        return Written([], {}, in_one_line(error))


def _delete_old(folder: Path, keep: int, attempt: Attempt) -> None:
    try:
        if (
            attempt.superseded_by() is None
        ):  # a later attempt may be reading a checkpoint that this one would delete
            retention.delete_old(folder, keep)
    except OSError as error:
        log.error("old checkpoints could not be deleted", problem=str(error))
