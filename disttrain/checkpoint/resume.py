"""What a run starts from: the newest checkpoint that holds what it says, on all ranks the same one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from disttrain.checkpoint import folder as folders
from disttrain.checkpoint import manifest
from disttrain.checkpoint.folder import CommittedCheckpoint, DamagedCheckpoint
from disttrain.config.sections import CheckpointConfig
from disttrain.errors import ConfigError, Superseded
from disttrain.records.checkpoint import Checkpoint
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.runtime import log
from disttrain.runtime.process_group import World


@dataclass(frozen=True)
class ResumeSource(CommittedCheckpoint):
    """A checkpoint to start from."""

    only_model: bool = False
    """Whether the model alone is taken, to begin at step 1."""
    same_run: bool = False
    """Whether this run made it itself."""

    @property
    def step(self) -> int | None:
        """The step to go on from; None where nothing goes on."""
        return None if self.only_model else self.manifest.step


def checkpoint_folder(config: CheckpointConfig, run: RunDir) -> Path:
    """Where this run's checkpoints are."""
    return Path(config.dir).resolve() / run.sweep / run.name if config.dir else run.checkpoints


def find_resume_source(
    config: CheckpointConfig, run: RunDir, attempt: Attempt, expected: Checkpoint, steps: int, world: World
) -> ResumeSource | None:
    """The checkpoint that a run of `steps` starts from. All ranks together.

    That is the newest of its own that is whole; failing that, `start_from`. Raises `ConfigError` for one
    that does not belong to what `expected` describes.
    """
    folder = checkpoint_folder(config, run)
    if config.dir:
        _refuse_other_run(folder, run, world)
    found = newest_intact(folder, attempt, world)
    if found is not None:
        manifest.refuse_other_config(found, expected)
        origin = ResumeSource(**vars(found), same_run=True)
    elif config.start_from is not None:
        origin = ResumeSource(
            **vars(_named(config.start_from, world)), only_model=config.start_with == "model"
        )
    else:
        return None
    if not origin.only_model:
        manifest.refuse_other_data(origin, expected)
        manifest.refuse_beyond_the_end(origin, steps)
        manifest.log_inexact_resume(origin, expected)
    return origin


def newest_intact(folder: Path, attempt: Attempt, world: World) -> CommittedCheckpoint | None:
    """The newest checkpoint whose checksums hold; damaged ones on the way there are set aside."""

    def move_to_quarantine(path: Path, problem: str) -> None:
        _decided(lambda: _quarantine(path, problem, attempt), world)

    _decided(lambda: _remove_partial(folder, attempt), world)
    while True:
        found = _decided(lambda: _newest_readable(folder, attempt), world)
        problem = _problem(found, world) if found else None
        if found is None or problem is None:
            return found
        move_to_quarantine(found.path, problem)


def _decided(act: Callable[[], CommittedCheckpoint | None], world: World) -> CommittedCheckpoint | None:
    """What rank 0 decides, on all ranks, be it a `ConfigError` or `Superseded`."""

    def decide() -> CommittedCheckpoint | ConfigError | Superseded | None:
        if world.rank:
            return None
        try:
            return act()
        except (ConfigError, Superseded) as error:
            return error

    decided = world.on_all_ranks(decide)[0]
    if isinstance(decided, Exception):
        raise decided
    return decided


def _remove_partial(folder: Path, attempt: Attempt) -> None:
    _refuse_superseded(attempt)
    folders.remove_partial(folder, attempt.number)


def _newest_readable(folder: Path, attempt: Attempt) -> CommittedCheckpoint | None:
    for path in folders.committed(folder):
        try:
            return CommittedCheckpoint(path, folders.read_manifest(path))
        except DamagedCheckpoint as error:
            _quarantine(path, str(error), attempt)
    return None


def _named(start_from: str, world: World) -> CommittedCheckpoint:
    """The checkpoint that the user named, which nobody here sets aside: it may be another run's."""
    path = Path(start_from).resolve()

    def look() -> CommittedCheckpoint:
        try:
            return CommittedCheckpoint(path, folders.read_manifest(path))
        except DamagedCheckpoint as error:
            raise ConfigError(f"checkpoint.start_from={start_from}: {error}") from None

    found = _decided(look, world)
    assert found is not None
    if problem := _problem(found, world):
        raise ConfigError(f"checkpoint.start_from={start_from}: {problem}")
    return found


def _problem(found: CommittedCheckpoint, world: World) -> str | None:
    """What is wrong with the content, if anything. The ranks share the files among them."""
    mine = sorted(found.manifest.files)[world.rank :: world.size]
    wrong = world.on_all_ranks(lambda: folders.mismatched_files(found.path, found.manifest, mine))
    names = [name for share in wrong for name in share]
    if not names:
        return None

    def again() -> None:
        """One node with old views of a file system, or bad memory, is no reason to give a checkpoint up."""
        if world.rank == 0 and len(folders.mismatched_files(found.path, found.manifest, names)) < len(names):
            raise RuntimeError(f"{found.path}: rank 0 finds whole what other ranks do not find: {names}")

    world.on_all_ranks(again)
    return f"{', '.join(names)}: not what was written (checksum)"


def _quarantine(path: Path, problem: str, attempt: Attempt) -> None:
    _refuse_superseded(attempt)
    aside = folders.quarantine(path)
    log.error("damaged checkpoint set aside", path=str(path), aside=aside.name, problem=problem)


def _refuse_superseded(attempt: Attempt) -> None:
    newer = attempt.superseded_by()
    if newer is not None:
        raise Superseded(f"attempt {newer} of this run has begun")


def _refuse_other_run(folder: Path, run: RunDir, world: World) -> None:
    owner = world.on_all_ranks(lambda: folders.owner(folder, run.path) if world.rank == 0 else "")[0]
    if owner != str(run.path):
        raise ConfigError(
            f"checkpoint.dir: {folder} is in use by the run {owner}; choose another folder (if that run was "
            f"moved to {run.path}, delete owner.json there)"
        )
