"""Passes outside the training steps, such as those that time layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from disttrain.engine.train import prepare
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.runtime.stop_signals import StopSignals
from tests.support.stopping import config

pytestmark = pytest.mark.multiprocess


def test_an_isolated_pass_communicates_nothing(two_ranks, tmp_path):
    assert two_ranks.call(collectives_of_an_isolated_pass, tmp_path) == [0, 0]


def collectives_of_an_isolated_pass(world: World, folder: Path) -> int:
    """Count the collectives of a pass after a step with communication: a model with buffers broadcasts them
    at the start of the next pass."""
    session = prepare(config(ranks=2, nodes=2), RunOutput.of_job(folder, 0), world, StopSignals())
    session.stepper.step(1, session.batches)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        session.stepper.isolated_pass(session.stepper.spec.example(), lambda what: None)
    assert session.stepper.model.require_forward_param_sync
    session.telemetry.abort()
    return sum(event.count for event in profile.key_averages() if event.key.startswith("gloo:"))
