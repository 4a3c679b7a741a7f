"""The state that resumes: every part is written to a checkpoint and read back."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

from disttrain.checkpoint.resume import ResumeSource
from disttrain.checkpoint.share import own_share
from disttrain.checkpoint.state import RandomState, TrainState
from disttrain.optim.precision import Precision
from disttrain.runtime import log
from disttrain.runtime.device import seed_all
from disttrain.runtime.process_group import World
from tests.support.manifests import manifest, write_checkpoint

CPU = torch.device("cpu")
ALONE = World(rank=0, size=1, local_rank=0, local_size=1, device=CPU, backend=None)


class LossScale(Precision):
    """A precision with a state, as float16 has one."""

    def __init__(self, scale: float) -> None:
        self.scale = torch.tensor(scale)

    def state_dict(self) -> dict[str, Tensor]:
        return {"precision.scale": self.scale}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.scale = state["precision.scale"]


def state_of(precision: Precision) -> TrainState:
    model = nn.Linear(2, 3)
    return TrainState(model, torch.optim.SGD(model.parameters()), [precision, RandomState(CPU)], ALONE)


def saved(state: TrainState, path: Path, world_size: int) -> ResumeSource:
    """A checkpoint of step 5, as written by `world_size` ranks."""
    made = manifest(step=5, world_size=world_size)
    return ResumeSource(**vars(write_checkpoint(path, [own_share(state.capture(), 0, 1)], made)))


def test_the_state_of_a_precision_resumes_on_any_number_of_ranks(tmp_path):
    for world_size in (1, 2):
        source = saved(state_of(LossScale(1024.0)), tmp_path / str(world_size), world_size)
        precision = LossScale(1.0)
        assert state_of(precision).restore(source) == 5
        assert precision.scale.item() == 1024.0


def test_a_resume_logs_whether_the_random_state_was_restored(tmp_path):
    for world_size, expected in ((1, "restored"), (2, "reseeded")):
        source = saved(state_of(LossScale(1.0)), tmp_path / str(world_size), world_size)
        with patch.object(log, "info") as logged:
            state_of(LossScale(1.0)).restore(source)
        logged.assert_called_once_with("resumed", step=5, path=str(source.path), random_state=expected)


def test_a_restart_on_another_number_of_ranks_repeats_no_random_numbers():
    drawn = []
    for rank in range(8):
        seed_all(5 + 1 + rank)  # as at the start of a run on eight ranks
        drawn.append(torch.rand(()).item())
    for step in (1, 2, 3):
        for rank in range(2):
            world = dataclasses.replace(ALONE, rank=rank, size=2)
            RandomState(CPU).restart(step, 5, world)
            drawn.append(torch.rand(()).item())
    assert len(set(drawn)) == len(drawn)
