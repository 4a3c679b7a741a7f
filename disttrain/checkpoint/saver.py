"""Taking checkpoints: training waits for the copy of this rank's share to host memory, but not for the disk.

All ranks call the methods of their `CheckpointSaver` at the same steps. One background thread of each rank
writes its files, without collectives. The commit follows at a later step boundary, when all ranks are known
to have finished; rank 0 gathers their results. A checkpoint that fails costs a line in the log, never the
run. The thread refuses a share with NaN or infinity, so a state that is not finite is never committed.

The threads read the first checkpoint of each attempt back, as a resumed run would. If that fails, training
goes on, `status` shows the reason, checkpoints of earlier attempts stay, and the next one is read back, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from disttrain.checkpoint import folder as folders
from disttrain.checkpoint import integrity, retention, storage
from disttrain.checkpoint.folder import CommittedCheckpoint
from disttrain.checkpoint.host_buffers import HostBuffers
from disttrain.checkpoint.resume import problems_in_share
from disttrain.checkpoint.state_tensors import first_non_finite
from disttrain.checkpoint.storage import CapturedState, Share, State, WrittenShare
from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.errors import in_one_line, message_of
from disttrain.records.checkpoint import Checkpoint, CheckpointFile
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.runtime.process_group import World


@dataclass(frozen=True)
class SaveResult:
    """The share of a checkpoint that one rank has written, or the problem in one line."""

    share: WrittenShare
    files: dict[str, CheckpointFile]
    replicated: str
    """Digest of the layout of the replicated tensors."""
    holders: tuple[int, ...] | None = None
    """World ranks that hold them; None: all."""
    problem: str | None = None


@dataclass(frozen=True)
class _ReadBack:
    found: CommittedCheckpoint
    problem: Future[str | None]
    """The problem of this rank with its share of the files, in one line."""


@dataclass(frozen=True)
class _PendingSave:
    path: Path
    manifest: Checkpoint
    """Manifest without its files."""
    result: Future[SaveResult]


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
        capture: Callable[[], CapturedState],
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
        self._read_back: _ReadBack | None = None
        self._restorable = False
        """Whether the ranks have read a checkpoint of this attempt back."""
        self._buffers = HostBuffers()
        self._thread = _checkpoint_thread(world.device)

    @property
    def pending(self) -> bool:
        """Whether a checkpoint waits for its commit, or for the end of its read-back; the same on all
        ranks."""
        return self._pending_save is not None or self._read_back is not None

    @property
    def writing(self) -> bool:
        """Whether this rank is still writing files, or reading them back."""
        save, read_back = self._pending_save, self._read_back
        reading = read_back is not None and not read_back.problem.done()
        return reading or (save is not None and not save.result.done())

    def save(self, step: int, valid_loss: float | None) -> None:
        """Take a checkpoint of the state after `step`.

        The files are written in the background unless `checkpoint.asynchronous` is false.
        """
        self.commit()
        self.step = step
        path = folders.temporary_path(self.folder, step, self._attempt.number)
        now = datetime.now(UTC).isoformat()
        manifest = self._manifest.model_copy(update={"step": step, "valid_loss": valid_loss, "created": now})
        result = self._write_in_background(self._capture(), path)
        self._pending_save = _PendingSave(path, manifest, result)
        if not self._config.asynchronous:
            self.commit()

    def _write_in_background(self, state: CapturedState, path: Path) -> Future[SaveResult]:
        """Copy this rank's share of `state` and write it to `path`, without collectives. Raises nothing."""
        rank = self._world.rank
        try:
            share = storage.own_share(state, rank, self._world.size)
            copies = Share(self._buffers.copy(share.tensors), share.chunks)
        except Exception as error:
            failed: Future[SaveResult] = Future()
            failed.set_result(_failed(error))
            return failed
        layout, holders = _layout(state.replicated), state.holders
        step_records = self._attempt.steps(rank)

        def write() -> SaveResult:
            try:
                self._buffers.wait()
                share, files = _write(copies, path, rank, step_records)
                return SaveResult(share, files, layout, holders)
            except Exception as error:
                return _failed(error)

        return self._thread.submit(write)

    def commit(self) -> None:
        """Commit the pending checkpoint, if any, and end a read-back; waits until all ranks are done."""
        self._end_read_back()
        if self._pending_save is None:
            return
        now, self._pending_save = self._pending_save, None
        results = self._world.gather_object(now.result.result())
        committed = None if results is None else self._commit_or_fail(now, results)
        if not self._restorable:
            self._start_read_back(self._world.all_gather_object(committed)[0])

    def _start_read_back(self, found: CommittedCheckpoint | None) -> None:
        if found is not None:
            world = self._world
            problem = self._thread.submit(_read_back, found, world.rank, world.size, self._attempt)
            self._read_back = _ReadBack(found, problem)

    def _end_read_back(self) -> None:
        if self._read_back is None:
            return
        found, own = self._read_back.found, self._read_back.problem.result()
        self._read_back = None
        answers = enumerate(self._world.all_gather_object(own))
        problems = [f"rank {rank}: {problem}" for rank, problem in answers if problem]
        self._restorable = not problems
        if self._world.rank:
            return
        step, path = found.manifest.step, str(found.path)
        if problems:
            self.failed += 1
            self.committed_step = None
            log.error("checkpoint cannot be restored", step=step, problem=problems[0], path=path)
            return
        log.info("checkpoint read back", step=step)
        with contextlib.suppress(OSError):
            self._attempt.checkpoint_warning.unlink()
        self._thread.submit(_delete_old, self.folder, self._config.keep, self._attempt)

    def _commit_or_fail(self, now: _PendingSave, results: list[SaveResult]) -> CommittedCheckpoint | None:
        """Commit the checkpoint on rank 0; None if it failed."""
        step = now.manifest.step
        problems = [f"rank {rank}: {result.problem}" for rank, result in enumerate(results) if result.problem]
        layouts = {(result.holders, result.replicated) for result in results}
        if not problems and len(layouts) > len({result.holders for result in results}):
            problems = ["the ranks hold different models or optimizers"]
        if problems:
            self._fail(now.path, step, problems[0])
            return None
        try:
            committed = self._commit(now, results)
        except OSError as error:
            self._fail(now.path, step, f"rank 0: {in_one_line(error)}")
            return None
        self.committed_step = step
        log.info("checkpoint", step=step, bytes=sum(file.bytes for file in committed.manifest.files.values()))
        own_only = not self._restorable
        self._thread.submit(_delete_old, self.folder, self._config.keep, self._attempt, own_only)
        return committed

    def _commit(self, now: _PendingSave, results: list[SaveResult]) -> CommittedCheckpoint:
        """Commit the checkpoint on rank 0. Raises `OSError`."""
        storage.write_metadata(now.path, [result.share for result in results])
        files = {name: file for result in results for name, file in result.files.items()}
        files[folders.METADATA] = integrity.file_digest(now.path / folders.METADATA)
        for name, file in files.items():
            if os.stat(now.path / name).st_size != file.bytes:
                raise OSError(f"{name} differs in size from the bytes written")
        if reason := self._attempt.superseded():
            raise OSError(reason)
        manifest = now.manifest.model_copy(update={"files": files})
        return CommittedCheckpoint(folders.commit(now.path, manifest), manifest)

    def close(self) -> None:
        """Commit the pending checkpoint, and wait for its read-back and the background thread."""
        self.commit()
        self._end_read_back()
        self._thread.shutdown()

    def _fail(self, path: Path, step: int, problem: str) -> None:
        self.failed += 1
        if self._world.rank == 0:
            log.error("checkpoint failed", step=step, problem=problem, path=str(path))
            self._thread.submit(shutil.rmtree, path, True)


def _write(
    share: Share, path: Path, rank: int, step_records: Path
) -> tuple[WrittenShare, dict[str, CheckpointFile]]:
    if name := first_non_finite(share.tensors):
        raise ValueError(f"{name} contains NaN or infinity")
    written = storage.write(share, path, rank)
    files = {name: integrity.file_digest(path / name) for name in written.files}
    # the steps in the checkpoint are not repeated, so their records must be on disk
    with open(step_records, "rb") as records:
        os.fsync(records.fileno())
    return written, files


def _failed(error: Exception) -> SaveResult:
    return SaveResult(WrittenShare([], {}), {}, "", problem=in_one_line(error))


def _layout(state: State) -> str:
    """Digest of names, shapes and dtypes, equal on ranks that derive the same shares."""
    described = sorted((name, tuple(value.shape), str(value.dtype)) for name, value in state.items())
    return hashlib.sha256(repr(described).encode()).hexdigest()


def _read_back(found: CommittedCheckpoint, rank: int, world_size: int, attempt: Attempt) -> str | None:
    """Read the share of `rank` in a committed checkpoint, as at a start from it; the problem in one line.

    Records a problem for `status`. Raises nothing.
    """
    try:
        if rank == 0:
            integrity.read_manifest(found.path)
        problems = problems_in_share(found, rank, world_size)
        problem = "; ".join(f"{name}: {reason}" for name, reason in problems.items())
    except Exception as error:
        problem = in_one_line(error)
    if not problem:
        return None
    message = f"the checkpoint of step {found.manifest.step} cannot be restored: {problem}"
    try:
        write_json(attempt.checkpoint_warning, {"message": message})
    except OSError as error:
        log.error("the warning is not recorded", problem=message_of(error))
    return problem


def _delete_old(folder: Path, keep: int, attempt: Attempt, own_only: bool = False) -> None:
    """Delete old checkpoints, with `own_only` those of this attempt alone."""
    try:
        if (
            attempt.superseded() is None
        ):  # a later attempt may be reading a checkpoint that this one would delete
            retention.delete_old(folder, keep, attempt.number if own_only else None)
    except OSError as error:
        log.error("old checkpoints could not be deleted", problem=message_of(error))


def _checkpoint_thread(device: torch.device) -> ThreadPoolExecutor:
    """A thread whose current device is that of this rank: on the default one, CUDA would create a context."""
    if device.type == "cuda":
        return ThreadPoolExecutor(1, "checkpoint", torch.cuda.set_device, (device,))
    return ThreadPoolExecutor(1, "checkpoint")
