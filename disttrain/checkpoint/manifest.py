"""The manifest of a run's checkpoints, and the checks of another one against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from disttrain.checkpoint.folder import CommittedCheckpoint
from disttrain.checkpoint.storage import Positions, file_of
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.run_key import config_key
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import Checkpoint, CheckpointFile, CheckpointPositions, CheckpointTensor
from disttrain.records.collect_provenance import code_hash
from disttrain.records.dataset import DatasetRecord
from disttrain.records.run_directory import Attempt
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
class WrittenShare:
    """The share of one rank, on disk."""

    tensors: dict[str, CheckpointTensor]
    positions: Positions
    file: CheckpointFile
    layout: tuple[tuple[int, ...] | None, str]
    """See `CapturedState.layout`."""


def describe_shares(shares: Sequence[WrittenShare]) -> dict[str, object]:
    """The fields `tensors`, `positions` and `files` of a manifest, from the shares by rank.

    Shards have equal positions on most ranks, so that the manifest grows with the ranks only by their files
    and by the tensors that each of them has alone.
    """
    tensors = {name: tensor for share in shares for name, tensor in share.tensors.items()}
    ranks_at: dict[tuple[tuple[str, tuple[int, int]], ...], list[int]] = {}
    for rank, share in enumerate(shares):
        for sharded in (True, False):
            part = tuple(at for at in share.positions.items() if bool(tensors[at[0]].mesh) == sharded)
            ranks_at.setdefault(part, []).append(rank)
    return {
        "tensors": tensors,
        "positions": [
            CheckpointPositions(ranks=ranks, positions=dict(at)) for at, ranks in ranks_at.items() if at
        ],
        "files": {file_of(rank): share.file for rank, share in enumerate(shares)},
    }


def refuse_other_config(found: CommittedCheckpoint, expected: Checkpoint) -> None:
    """Raise `ConfigError` for a checkpoint of another config in the run's own folder."""
    if found.manifest.config_key != expected.config_key:
        raise ConfigError(
            f"{found.path.parent} holds checkpoints of another config ({found.manifest.config_key}; this one "
            f"is {expected.config_key}); use another run directory, or checkpoint.start_from={found.path}"
        )


def refuse_other_training(found: CommittedCheckpoint, expected: Checkpoint, steps: int) -> None:
    """Raise `ConfigError` if resuming from `found` would change the samples or their order, or if it is of a
    later step than the last one of this run."""
    for name in ("dataset", *_DATA_HASHES, "global_batch_size", "seed"):
        was, now = getattr(found.manifest, name), getattr(expected, name)
        if was != now:
            raise ConfigError(
                f"{found.path} was trained with {name}={was}, this run has {name}={now}; to take the model "
                f"alone: checkpoint.start_from={found.path} and checkpoint.start_with=model in a new run"
            )
    if found.manifest.step > steps:
        raise ConfigError(
            f"{found.path} is of step {found.manifest.step}, beyond the {steps} steps of this run "
            "(train.steps); checkpoint.start_with=model begins at step 1 from it"
        )


def log_inexact_resume(found: CommittedCheckpoint, expected: Checkpoint) -> None:
    """Log differences of code, torch or world size, and data that cannot be compared: resuming is allowed,
    but not bit-exact."""
    for name in ("code_hash", "torch", "world_size"):
        was, now = getattr(found.manifest, name), getattr(expected, name)
        if was != now:
            log.info("resume is not exact", reason=f"{name} was {was} and is {now}")
    if all(getattr(found.manifest, name) is None for name in _DATA_HASHES):
        log.info("resume is not exact", reason="the checkpoint does not identify its training data")
