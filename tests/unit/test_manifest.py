"""The manifest of a run's checkpoints, and which found checkpoints a run refuses, or resumes inexactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.checkpoint.resume import ResumeSource, build_manifest, fitting
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.run_key import config_key
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import Checkpoint
from disttrain.records.collect_provenance import code_hash
from disttrain.records.dataset import DatasetRecord
from disttrain.records.run_directory import RunDir
from disttrain.runtime import log
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


OF_THE_SAMPLES = ("dataset", "dataset_sha256", "dataset_fingerprint", "global_batch_size", "seed")


def resume(steps: int = 10, **changes: Any) -> ResumeSource:
    """From a checkpoint of step 10 that differs from the expected manifest in `changes`."""
    source = ResumeSource(PATH, EXPECTED.model_copy(update={"step": 10, **changes}))
    return fitting(source, EXPECTED, steps, OF_THE_SAMPLES, "x=model")


def test_the_manifest_is_made_of_the_run() -> None:
    config = Config.model_validate({"train": {"seed": 3}})
    dataset = DatasetRecord(
        name="digits", version="1", sha256="abc", fingerprint="def", train_samples=9, valid_samples=1
    )
    world = World(rank=1, size=2, local_rank=1, local_size=2, device=torch.device("cpu"), backend=None)
    attempt = RunDir(Path("/runs/s/n1")).attempt(1)
    made = build_manifest(config, dataset, BatchPlan(2, 2, 2), attempt, world)
    of_the_run = {"config_key": config_key(config), "code_hash": code_hash(), "torch": torch.__version__}
    assert made == EXPECTED.model_copy(update=of_the_run)


@pytest.mark.parametrize(
    ("field", "other"), [*zip(OF_THE_SAMPLES, ["text", "other", "other", 16, 4], strict=True)]
)
def test_a_checkpoint_of_other_samples_or_another_order_is_refused(field: str, other: object) -> None:
    with pytest.raises(ConfigError) as caught:
        resume(**{field: other})
    assert str(caught.value) == (
        f"{PATH} cannot be resumed: {field} was {other} and is {getattr(EXPECTED, field)}; to take the model "
        "alone: x=model"
    )


def test_a_checkpoint_beyond_the_last_step_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=f"{PATH} cannot be resumed: it is of step 10, beyond the 9 steps of"
    ):
        resume(9)


def test_an_inexact_resume_is_logged_with_each_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[str, str]] = []
    monkeypatch.setattr(log, "info", lambda message, reason: logged.append((message, reason)))
    resume()
    assert logged == []
    unknown = {"dataset_sha256": None, "dataset_fingerprint": None}
    monkeypatch.setattr(f"{__name__}.EXPECTED", EXPECTED.model_copy(update=unknown))
    resume(code_hash="old", torch="2.11", world_size=4, attempt=0, valid_loss=1.0)
    assert logged == [
        ("resume is not exact", "code_hash was old and is code"),
        ("resume is not exact", "torch was 2.11 and is 2.13"),
        ("resume is not exact", "world_size was 4 and is 2"),
        ("resume is not exact", "the checkpoint does not identify its training data"),
    ]
