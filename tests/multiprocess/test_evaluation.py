"""Validation on several ranks: the score of the model that a checkpoint holds, without effect on training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from disttrain.config.config_tree import Config
from disttrain.engine.train import batches_of, begin, run
from disttrain.records.metrics import EvalPoint
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from tests.support.ranks import Ranks
from tests.support.small_models import Deep, source
from tests.support.stopping import config
from tests.support.tolerance import tolerance

pytestmark = pytest.mark.multiprocess


def trained(world: World, made: Config, folder: Path) -> tuple[dict[str, Tensor], list[EvalPoint]]:
    """The state of the model after training, and the validations."""
    with begin(made, RunOutput.of_job(folder, 0), world) as trainer:
        run(trainer, batches_of(trainer))
    state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return state, trainer.metrics().eval_history


def test_batch_norm_is_validated_with_the_statistics_that_a_checkpoint_holds(
    two_ranks: Ranks, tmp_path
) -> None:
    state, points = two_ranks.call(trained, config(nodes=2), tmp_path)[0]
    model, held_out = Deep(), source(40).valid
    model.load_state_dict(state)
    model.eval()
    expected = F.cross_entropy(model(held_out.inputs), held_out.targets).item()
    assert points[-1].loss == pytest.approx(expected, rel=tolerance())


def test_validation_does_not_change_training(two_ranks: Ranks, tmp_path: Path) -> None:
    two_micro_steps = {"local_batch_size": 2, "global_batch_size": 8}
    model = {"dropout": 0.0}  # building a loader draws a random number
    once = two_ranks.call(trained, config(nodes=2, model=model, train=two_micro_steps), tmp_path / "once")
    often = config(nodes=2, model=model, train={**two_micro_steps, "eval_every": 1})
    every_step = two_ranks.call(trained, often, tmp_path / "often")
    assert len(every_step[0][1]) == 12
    for (expected, _), (found, _) in zip(once, every_step, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
