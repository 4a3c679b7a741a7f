"""The manifest of a run's checkpoints, and which checkpoints a run refuses, or resumes inexactly."""

from pathlib import Path

import pytest
import torch

from disttrain.checkpoint.resume import ResumeSource, build_manifest, fitting
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.run_key import config_key
from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash
from disttrain.records.dataset import DatasetRecord
from disttrain.records.run_directory import RunDir
from disttrain.runtime import log
from disttrain.runtime.process_group import World
from tests.support.manifests import manifest

PATH = Path("/runs/s/n1/checkpoints/step-00000010")
OF_THE_SAMPLES = {
    "dataset": "digits", "dataset_sha256": "abc", "dataset_fingerprint": "def", "global_batch_size": 8,
    "seed": 3,
}  # fmt: skip
EXPECTED = manifest(step=0, world_size=2).model_copy(update={**OF_THE_SAMPLES, "attempt": 1, "torch": "2.13"})


def resume(steps=10, expected=EXPECTED, only_model=False, **changes):
    """From a checkpoint of step 10 that differs from the expected manifest in `changes`."""
    source = ResumeSource(PATH, expected.model_copy(update={"step": 10, **changes}), only_model)
    return fitting(source, expected, steps, tuple(OF_THE_SAMPLES), "x=model")


def test_the_manifest_is_made_of_the_run():
    config = Config.model_validate({"train": {"seed": 3}})
    dataset = DatasetRecord(
        name="digits", version="1", sha256="abc", fingerprint="def", train_samples=9, valid_samples=1
    )
    world = World(1, 2, 1, 2, device=torch.device("cpu"), backend=None)
    made = build_manifest(config, dataset, BatchPlan(2, 2, 2), RunDir(Path("/runs/s/n1")).attempt(1), world)
    of_the_run = {"config_key": config_key(config), "code_hash": code_hash(), "torch": torch.__version__}
    assert made == EXPECTED.model_copy(update=of_the_run)


@pytest.mark.parametrize("field", OF_THE_SAMPLES)
def test_a_checkpoint_of_other_samples_or_another_order_gives_its_model_alone(field):
    other = 16 if isinstance(OF_THE_SAMPLES[field], int) else "other"
    with pytest.raises(
        ConfigError, match=f"{PATH} .* {field} was {other} and is {OF_THE_SAMPLES[field]}; .*x=model"
    ):
        resume(**{field: other})
    assert resume(only_model=True, **{field: other}).step is None


def test_a_checkpoint_beyond_the_last_step_is_refused():
    assert resume(10).step == 10
    with pytest.raises(ConfigError, match="step 10, beyond the 9 steps"):
        resume(9)


def test_an_inexact_resume_is_logged_with_each_difference(monkeypatch):
    reasons = []
    monkeypatch.setattr(log, "info", lambda message, reason: reasons.append(reason))
    resume(attempt=0, valid_loss=1.0)
    assert reasons == []
    unknown = EXPECTED.model_copy(update={"dataset_sha256": None, "dataset_fingerprint": None})
    resume(expected=unknown, code_hash="old", torch="2.11", world_size=4)
    changed = ["code_hash was old and is c", "torch was 2.11 and is 2.13", "world_size was 4 and is 2"]
    assert (reasons[:3], len(reasons)) == (changed, 4), "the last one: unidentified data"
