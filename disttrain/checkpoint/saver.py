"""Taking checkpoints: training waits for the copy of this rank's share to host memory, but not for the disk.

All ranks call the methods of their `CheckpointSaver` at the same steps. One background thread of each rank
writes its files, without collectives. The commit follows at a later step boundary, when all ranks are known
to have finished; rank 0 gathers their results. A checkpoint that fails costs a line in the log, never the
run. The thread refuses a share with NaN or infinity, so a state that is not finite is never committed.

The threads read the first checkpoint of each attempt back, and no older one is deleted before. If that fails,
training goes on, `status` shows the reason, and the next one is read back, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from disttrain.checkpoint import folder as folders
from disttrain.checkpoint import storage
from disttrain.checkpoint.folder import CommittedCheckpoint, DamagedCheckpoint
from disttrain.checkpoint.resume import share_of_files
from disttrain.checkpoint.share import CapturedState, HostBuffers, Share, own_share
from disttrain.checkpoint.state import first_non_finite
from disttrain.checkpoint.storage import WrittenShare, describe_shares
from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.errors import in_one_line, message_of
from disttrain.records.checkpoint import Checkpoint
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.runtime.process_group import World

T = TypeVar("T")


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
        self._pending: tuple[Future[Any], Callable[[Any], None]] | None = None
        """The result of this rank's thread, which writes a checkpoint or reads one back, or a problem in one
        line; and what follows once all ranks are done."""
        self._restorable = False
        """Whether the ranks have read a checkpoint of this attempt back."""
        self._buffers = HostBuffers()
        # on the default device, CUDA would create a context
        on_device = (torch.cuda.set_device, (world.device,)) if world.device.type == "cuda" else ()
        self._thread = ThreadPoolExecutor(1, "checkpoint", *on_device)

    @property
    def pending(self) -> bool:
        """Whether a checkpoint waits for its commit, or for the end of its read-back; the same on all
        ranks."""
        return self._pending is not None

    @property
    def writing(self) -> bool:
        """Whether this rank is still writing files, or reading them back."""
        return self._pending is not None and not self._pending[0].done()

    def save(self, step: int, valid_loss: float | None) -> None:
        """Take a checkpoint of the state after `step`.

        The files are written in the background unless `checkpoint.asynchronous` is false.
        """
        self._finish()
        self.step = step
        path = folders.temporary_path(self.folder, step, self._attempt.number)
        now = datetime.now(UTC).isoformat()
        manifest = self._manifest.model_copy(update={"step": step, "valid_loss": valid_loss, "created": now})
        written = self._write_in_background(self._capture(), path)
        self._pending = written, partial(self._end_write, CommittedCheckpoint(path, manifest))
        if not self._config.asynchronous:
            self.commit()

    def _write_in_background(self, state: CapturedState, path: Path) -> Future[WrittenShare | str]:
        """Copy this rank's share of `state` and write it to `path`, without collectives. Raises nothing."""
        rank = self._world.rank

        def copied() -> Share:
            share = own_share(state, rank, self._world.size)
            return replace(share, tensors=self._buffers.copy(share.tensors))

        share = _or_problem(copied)

        def write() -> WrittenShare | str:
            if isinstance(share, str):
                return share
            self._buffers.wait()
            if name := first_non_finite(share.tensors):
                raise ValueError(f"{name} contains NaN or infinity")
            positions = storage.write(share.tensors, path, rank)
            # the steps in the checkpoint are not repeated, so their records must be on disk
            folders.sync(self._attempt.steps(rank))
            file = folders.file_digest(path / storage.file_of(rank))
            return WrittenShare(share.described, positions, file, share.layout)

        return self._thread.submit(_or_problem, write)

    def commit(self) -> None:
        """Commit the checkpoint that is pending, and begin to read the first one back, or end that; waits
        until all ranks are done."""
        if self._pending is not None:
            (result, then), self._pending = self._pending, None
            then(result.result())

    def _end_write(self, written: CommittedCheckpoint, result: WrittenShare | str) -> None:
        """Commit the checkpoint, and have the first one read back."""
        results = self._world.gather_object(result)
        committed = None if results is None else self._commit(written, results)
        if self._restorable or (committed := self._world.of_rank0(committed)) is None:
            return
        reading = self._thread.submit(_or_problem, partial(self._read_back, committed))
        self._pending = reading, partial(self._end_read_back, committed)

    def _commit(
        self, written: CommittedCheckpoint, results: list[WrittenShare | str]
    ) -> CommittedCheckpoint | None:
        """Commit the checkpoint on rank 0; None if it failed."""
        path, step = written.path, written.manifest.step
        shares = [result for result in results if isinstance(result, WrittenShare)]
        problems = [
            f"rank {rank}: {result}" for rank, result in enumerate(results) if isinstance(result, str)
        ]
        if len({share.layout for share in shares}) > len({share.layout[0] for share in shares}):
            problems.append("the ranks hold different models or optimizers")
        try:
            if problems:
                raise ValueError(problems[0])
            manifest = written.manifest.model_copy(update=describe_shares(shares))
            storage.write_metadata(path, manifest)
            manifest.files[storage.METADATA] = folders.file_digest(path / storage.METADATA)
            folders.verify_sizes(path, manifest)
            if reason := self._attempt.superseded():
                raise ValueError(reason)
            committed = CommittedCheckpoint(folders.commit(path, manifest), manifest)
        except (OSError, ValueError) as error:
            self.failed += 1
            log.error("checkpoint failed", step=step, problem=message_of(error), path=str(path))
            self._thread.submit(shutil.rmtree, path, True)
            return None
        self.committed_step = step
        log.info("checkpoint", step=step, bytes=sum(file.bytes for file in manifest.files.values()))
        own_only = not self._restorable  # older ones stay until one of this attempt has been read back
        self._thread.submit(_delete_old, self.folder, self._config.keep, self._attempt, own_only)
        return committed

    def _read_back(self, committed: CommittedCheckpoint) -> None:
        """Verify and load this rank's share of the files, as at a start. Raises an exception of any type."""
        names = share_of_files(committed, self._world.rank, self._world.size)
        if wrong := folders.mismatched_files(committed, names):
            raise DamagedCheckpoint(f"the checksum of {wrong[0]} differs from the manifest")
        storage.verify_content(committed, names)

    def _end_read_back(self, committed: CommittedCheckpoint, result: str | None) -> None:
        problems = self._world.all_gather_object(result)
        failed = [f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem]
        self._restorable = not failed
        if self._world.rank:
            return
        step, warning = committed.manifest.step, self._attempt.checkpoint_warning
        try:
            if failed:
                self.failed += 1
                self.committed_step = None
                log.error(
                    "checkpoint cannot be restored", step=step, problem=failed[0], path=str(committed.path)
                )
                message = f"the checkpoint of step {step} cannot be restored: {failed[0]}"
                write_json(warning, {"message": message})
            else:
                log.info("checkpoint read back", step=step)
                self._thread.submit(_delete_old, self.folder, self._config.keep, self._attempt)
                warning.unlink(missing_ok=True)
        except OSError as error:
            log.error("the warning of a checkpoint is not recorded", problem=message_of(error))

    def close(self) -> None:
        """Commit the pending checkpoint, and wait for its read-back and the background thread."""
        self._finish()
        self._thread.shutdown()

    def _finish(self) -> None:
        while self.pending:
            self.commit()


def _or_problem(act: Callable[[], T]) -> T | str:
    """The result of `act`, or its exception in one line."""
    try:
        return act()
    except Exception as error:
        return in_one_line(error)


def _delete_old(folder: Path, keep: int, attempt: Attempt, own_only: bool = False) -> None:
    try:
        # a later attempt may be reading a checkpoint that this one would delete
        if attempt.superseded() is None:
            folders.delete_old(folder, keep, attempt.number if own_only else None)
    except OSError as error:
        log.error("old checkpoints could not be deleted", problem=message_of(error))
