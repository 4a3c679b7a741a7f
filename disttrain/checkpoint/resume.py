"""The checkpoint that a run starts from: the newest intact one, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from disttrain.checkpoint import folder as folders
from disttrain.checkpoint import manifest
from disttrain.checkpoint.folder import CommittedCheckpoint, DamagedCheckpoint, checkpoint_folder
from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.errors import ConfigError, Superseded
from disttrain.records.checkpoint import Checkpoint, committed_paths
from disttrain.records.run_directory import Attempt, RunDir, checkpoint_steps
from disttrain.runtime import log
from disttrain.runtime.process_group import World


@dataclass(frozen=True)
class ResumeSource(CommittedCheckpoint):
    """The checkpoint that a run starts from."""

    only_model: bool = False
    """Whether only the model is loaded, and training begins at step 1."""
    same_run: bool = False
    """Whether this run wrote the checkpoint itself."""

    @property
    def step(self) -> int | None:
        """The step after which training continues; None if it begins at step 1."""
        return None if self.only_model else self.manifest.step


def find_resume_source(
    config: CheckpointConfig, run: RunDir, attempt: Attempt, expected: Checkpoint, steps: int, world: World
) -> ResumeSource | None:
    """The checkpoint that a run of `steps` steps starts from; None for a start from scratch. A collective.

    The run's own newest intact checkpoint comes first, then `checkpoint.start_from`. Raises `ConfigError` for
    a checkpoint that does not fit the run that `expected` describes, and as `newest_intact` does.
    """
    found = newest_intact(checkpoint_folder(config, run), attempt, world)
    if found is not None:
        manifest.refuse_other_config(found, expected)
        source = ResumeSource(**vars(found), same_run=True)
    elif config.start_from is not None:
        named = named_checkpoint(config.start_from, "checkpoint.start_from", world)
        source = ResumeSource(**vars(named), only_model=config.start_with == "model")
    else:
        return None
    if not source.only_model:
        manifest.refuse_other_training(source, expected, steps)
        manifest.log_inexact_resume(source, expected)
    return source


def refuse_later_checkpoint(folder: Path, start: int, world: World) -> None:
    """Raise `RuntimeError` if an earlier attempt has a checkpoint after step `start`, where this one began.

    Retention keeps the newest steps, so that it would delete the checkpoints of this attempt. A
    collective.
    """
    newest = world.of_rank0(max(checkpoint_steps(folder), default=0) if world.rank == 0 else 0)
    if newest > start:
        raise RuntimeError(
            f"{folder} has a checkpoint of step {newest} of an earlier attempt; call load() before the first "
            "step, or give another run_dir"
        )


def find_checkpoint(
    path: str | Path | None,
    folder: Path,
    attempt: Attempt,
    expected: Checkpoint,
    steps: int,
    world: World,
    only_model: bool,
) -> ResumeSource | None:
    """The checkpoint `path` of a script, or the newest intact one in `folder`; None without one. Collective.

    Raises `ConfigError` for a checkpoint of another global batch, or beyond the last one of `steps`.
    """
    if path is not None:
        committed = named_checkpoint(str(path), "path", world)
    elif (newest := newest_intact(folder, attempt, world)) is not None:
        committed = newest
    else:
        return None
    source = ResumeSource(**vars(committed), only_model=only_model, same_run=path is None)
    if only_model:
        return source
    was = source.manifest
    if was.global_batch_size != expected.global_batch_size:
        raise ConfigError(
            f"{source.path} was trained with a global batch of {was.global_batch_size} samples, this Trainer "
            f"has {expected.global_batch_size}; load(path, model_only=True) takes the model alone"
        )
    if was.step > steps:
        raise ConfigError(f"{source.path} is of step {was.step}, beyond steps={steps}")
    manifest.log_inexact_resume(source, expected)
    return source


def newest_intact(folder: Path, attempt: Attempt, world: World) -> CommittedCheckpoint | None:
    """The newest intact checkpoint; newer, damaged ones go to quarantine. None if the run never had one. A
    collective.

    Raises `ConfigError` if all are damaged.
    """
    while True:
        found = _on_rank0(lambda: _newest_readable(folder, attempt), world)
        problem = _problem(found, world) if found else None
        if found is None or problem is None:
            return found
        _on_rank0(partial(_quarantine, found.path, problem, attempt), world)


def _on_rank0(act: Callable[[], CommittedCheckpoint | None], world: World) -> CommittedCheckpoint | None:
    """Run `act` on rank 0; all ranks return its result, or raise its `ConfigError` or `Superseded`."""

    def result() -> CommittedCheckpoint | ConfigError | Superseded | None:
        if world.rank:
            return None
        try:
            return act()
        except (ConfigError, Superseded) as error:
            return error

    decided = world.on_all_ranks(result)[0]
    if isinstance(decided, Exception):
        raise decided
    return decided


def _newest_readable(folder: Path, attempt: Attempt) -> CommittedCheckpoint | None:
    _refuse_superseded(attempt)
    folders.remove_partial(folder, attempt.number)
    for path in committed_paths(folder):
        try:
            return CommittedCheckpoint(path, folders.read_manifest(path))
        except DamagedCheckpoint as error:
            _quarantine(path, str(error), attempt)
    if any(folder.glob("step-*.damaged*")):
        raise ConfigError(
            f"all checkpoints of this run are damaged ({folder}); submit.py resume RUN --from-scratch "
            "trains from step 1 and keeps them aside (by hand: move that folder away)"
        )
    return None


def named_checkpoint(given: str, field: str, world: World) -> CommittedCheckpoint:
    """The checkpoint at the path `given` in `field`. It may belong to another run, so it is never
    quarantined. A collective.

    Raises `ConfigError` if it is missing or damaged.
    """
    path = Path(given).resolve()

    def read() -> CommittedCheckpoint:
        try:
            return CommittedCheckpoint(path, folders.read_manifest(path))
        except DamagedCheckpoint as error:
            raise ConfigError(f"{field}={given}: {error}") from None

    found = _on_rank0(read, world)
    assert found is not None
    if problem := _problem(found, world):
        raise ConfigError(f"{field}={given}: {problem}")
    return found


def _problem(found: CommittedCheckpoint, world: World) -> str | None:
    """One line naming the damaged files, or None. Each rank verifies a share of the files."""
    names = share_of_files(found, world.rank, world.size)
    shares = world.on_all_ranks(lambda: folders.mismatched_files(found, names))
    wrong = [name for share in shares for name in share]
    if not wrong:
        return None

    def verify_again() -> None:
        """Rank 0 verifies too: a stale file cache or bad memory of one node does not make a file damaged."""
        unconfirmed = {*wrong} - {*folders.mismatched_files(found, wrong)} if world.rank == 0 else None
        if unconfirmed:
            raise RuntimeError(
                f"{found.path}: intact on rank 0, but not on other ranks: {sorted(unconfirmed)}"
            )

    world.on_all_ranks(verify_again)
    return "; ".join(f"{name}: checksum differs from the manifest" for name in wrong)


def share_of_files(found: CommittedCheckpoint, rank: int, world_size: int) -> list[str]:
    """The files that `rank` verifies."""
    return sorted(found.manifest.files)[rank::world_size]


def _quarantine(path: Path, problem: str, attempt: Attempt) -> None:
    _refuse_superseded(attempt)
    target = folders.quarantine(path)
    log.error("damaged checkpoint in quarantine", path=str(path), quarantine=target.name, problem=problem)


def _refuse_superseded(attempt: Attempt) -> None:
    reason = attempt.superseded()
    if reason is not None:
        raise Superseded(reason)
