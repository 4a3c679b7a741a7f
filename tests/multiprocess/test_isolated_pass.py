"""Passes outside the training steps, such as those that time layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from disttrain.engine.train import batches_of, begin
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from tests.support.stopping import config

pytestmark = pytest.mark.multiprocess


def test_an_isolated_pass_communicates_nothing(two_ranks, tmp_path):
    assert two_ranks.call(collectives_of_an_isolated_pass, tmp_path) == [0, 0]


def collectives_of_an_isolated_pass(world: World, folder: Path) -> int:
    """Count the collectives of a pass after a step with communication: a model with buffers broadcasts them
    at the start of the next pass."""
    trainer = begin(config(ranks=2, nodes=2), RunOutput.of_job(folder, 0), world)
    trainer.step(batches_of(trainer))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        trainer.stepper.isolated_pass(trainer.stepper.spec.example(), lambda: None)
    assert trainer.stepper.model.require_forward_param_sync
    trainer.recorder.abort()
    return sum(event.count for event in profile.key_averages() if event.key.startswith("gloo:"))
