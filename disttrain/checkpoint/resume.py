"""The manifest of a run, and the checkpoint that it starts from, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from disttrain.checkpoint import folder as folders
from disttrain.checkpoint.folder import CommittedCheckpoint, DamagedCheckpoint, checkpoint_folder
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.run_key import config_key
from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.errors import ConfigError, Superseded
from disttrain.records.checkpoint import Checkpoint, committed_paths
from disttrain.records.collect_provenance import code_hash
from disttrain.records.dataset import DatasetRecord
from disttrain.records.run_directory import Attempt, RunDir, checkpoint_steps
from disttrain.runtime import log
from disttrain.runtime.process_group import World

_DATA_HASHES = ("dataset_sha256", "dataset_fingerprint")


def build_manifest(
    config: Config,
    dataset: DatasetRecord,
    plan: BatchPlan,
    attempt: Attempt,
    world: World,
) -> Checkpoint:
    """The manifest of this attempt's checkpoints; step, time, tensors and files are filled in at each
    save."""
    return Checkpoint(
        step=0,
        attempt=attempt.number,
        config_key=config_key(config),
        code_hash=code_hash(),
        world_size=world.size,
        global_batch_size=plan.global_,
        seed=config.train.seed,
        dataset=dataset.name,
        dataset_sha256=dataset.sha256,
        dataset_fingerprint=dataset.fingerprint,
        valid_loss=None,
        created="",
        torch=torch.__version__,
        files={},
        tensors={},
        positions=[],
    )


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
        if found.manifest.config_key != expected.config_key:
            raise ConfigError(
                f"{found.path.parent} holds checkpoints of another config ({found.manifest.config_key}; this "
                f"one is {expected.config_key}); use another run directory, or "
                f"checkpoint.start_from={found.path}"
            )
        source = ResumeSource(**vars(found), same_run=True)
    elif config.start_from is not None:
        named = named_checkpoint(config.start_from, "checkpoint.start_from", world)
        source = ResumeSource(**vars(named), only_model=config.start_with == "model")
    else:
        return None
    remedy = f"checkpoint.start_from={source.path} and checkpoint.start_with=model in a new run"
    return fitting(source, expected, steps, ("dataset", *_DATA_HASHES, "global_batch_size", "seed"), remedy)


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
    named = None if path is None else named_checkpoint(str(path), "path", world)
    if (found := named or newest_intact(folder, attempt, world)) is None:
        return None
    source = ResumeSource(**vars(found), only_model=only_model, same_run=path is None)
    return fitting(source, expected, steps, ("global_batch_size",), "load(path, model_only=True)")


def fitting(
    source: ResumeSource, expected: Checkpoint, steps: int, equal: Sequence[str], remedy: str
) -> ResumeSource:
    """`source`, if training may go on from it.

    Raises `ConfigError` if a value of `equal` differs, which decide on the samples and their order, or if it
    is beyond the last one of `steps`. Logs why the resume is not bit-exact.
    """
    if source.only_model:
        return source
    was = source.manifest
    changes = {
        name: f"{name} was {old} and is {new}"
        for name in (*equal, "code_hash", "torch", "world_size")
        if (old := getattr(was, name)) != (new := getattr(expected, name))
    }
    problem = next((changes[name] for name in equal if name in changes), None)
    if problem is None and was.step > steps:
        problem = f"it is of step {was.step}, beyond the {steps} steps of this run"
    if problem is not None:
        raise ConfigError(f"{source.path} cannot be resumed: {problem}; to take the model alone: {remedy}")
    for change in changes.values():
        log.info("resume is not exact", reason=change)
    if all(getattr(was, name) is None for name in _DATA_HASHES):
        log.info("resume is not exact", reason="the checkpoint does not identify its training data")
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
            f"all checkpoints of this run are damaged ({folder}); disttrain resume RUN --from-scratch "
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
