"""The manifest of a run's checkpoints, and which found checkpoints a run refuses, or resumes inexactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.checkpoint import manifest as manifests
from disttrain.checkpoint.folder import CommittedCheckpoint
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.run_key import config_key
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import Checkpoint
from disttrain.records.collect_provenance import code_hash
from disttrain.records.dataset import DatasetRecord
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process_group import World

PATH = Path("/runs/s/n1/checkpoints/step-00000010")
EXPECTED = Checkpoint(
    step=0,
    attempt=1,
    config_key="this",
    code_hash="code",
    world_size=2,
    global_batch_size=8,
    seed=3,
    dataset="digits",
    dataset_sha256="abc",
    dataset_fingerprint="def",
    valid_loss=None,
    created="",
    torch="2.13",
    files={},
    tensors={},
    positions=[],
)


def found(**changes: Any) -> CommittedCheckpoint:
    """A checkpoint of step 10 that differs from the expected manifest in `changes`."""
    return CommittedCheckpoint(PATH, EXPECTED.model_copy(update={"step": 10, **changes}))


def test_the_manifest_is_made_of_the_run() -> None:
    config = Config.model_validate({"train": {"seed": 3}})
    dataset = DatasetRecord(
        name="digits", version="1", sha256="abc", fingerprint="def", train_samples=9, valid_samples=1
    )
    world = World(rank=1, size=2, local_rank=1, local_size=2, device=torch.device("cpu"), backend=None)
    attempt = RunDir(Path("/runs/s/n1")).attempt(1)
    made = manifests.build_manifest(config, dataset, BatchPlan(2, 2, 2), attempt, world)
    of_the_run = {"config_key": config_key(config), "code_hash": code_hash(), "torch": torch.__version__}
    assert made == EXPECTED.model_copy(update=of_the_run)


def test_a_checkpoint_of_another_config_is_refused() -> None:
    manifests.refuse_other_config(found(), EXPECTED)
    with pytest.raises(ConfigError) as caught:
        manifests.refuse_other_config(found(config_key="that"), EXPECTED)
    assert str(caught.value) == (
        "/runs/s/n1/checkpoints holds checkpoints of another config (that; this one is this); use another "
        f"run directory, or checkpoint.start_from={PATH}"
    )


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("dataset", "text"),
        ("dataset_sha256", "other"),
        ("dataset_fingerprint", "other"),
        ("global_batch_size", 16),
        ("seed", 4),
    ],
)
def test_a_checkpoint_of_other_samples_or_another_order_is_refused(field: str, other: object) -> None:
    with pytest.raises(ConfigError) as caught:
        manifests.refuse_other_training(found(**{field: other}), EXPECTED, 10)
    assert str(caught.value) == (
        f"{PATH} was trained with {field}={other}, this run has {field}={getattr(EXPECTED, field)}; to take "
        f"the model alone: checkpoint.start_from={PATH} and checkpoint.start_with=model in a new run"
    )


def test_a_checkpoint_of_another_code_or_world_has_the_same_data() -> None:
    other = found(code_hash="old", torch="2.11", world_size=4, attempt=0, valid_loss=1.0)
    manifests.refuse_other_training(other, EXPECTED, 10)


def test_a_checkpoint_beyond_the_last_step_is_refused() -> None:
    manifests.refuse_other_training(found(), EXPECTED, 10)
    with pytest.raises(ConfigError) as caught:
        manifests.refuse_other_training(found(), EXPECTED, 9)
    assert str(caught.value) == (
        f"{PATH} is of step 10, beyond the 9 steps of this run (train.steps); "
        "checkpoint.start_with=model begins at step 1 from it"
    )


def test_an_inexact_resume_is_logged_with_each_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[str, str]] = []
    monkeypatch.setattr(manifests.log, "info", lambda message, reason: logged.append((message, reason)))
    manifests.log_inexact_resume(found(dataset_sha256=None), EXPECTED)
    manifests.log_inexact_resume(found(dataset_fingerprint=None), EXPECTED)
    assert logged == []
    unknown = {"dataset_sha256": None, "dataset_fingerprint": None}
    other = found(code_hash="old", torch="2.11", world_size=4, **unknown)
    manifests.log_inexact_resume(other, EXPECTED)
    assert logged == [
        ("resume is not exact", "code_hash was old and is code"),
        ("resume is not exact", "torch was 2.11 and is 2.13"),
        ("resume is not exact", "world_size was 4 and is 2"),
        ("resume is not exact", "the checkpoint does not identify its training data"),
    ]
