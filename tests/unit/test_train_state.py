"""The state that resumes: every part is written to a checkpoint and read back."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from disttrain.checkpoint.resume import ResumeSource
from disttrain.checkpoint.share import own_share
from disttrain.checkpoint.state import RandomState, TrainState, preserve_state, random_state, set_random_state
from disttrain.optim.precision import Precision
from disttrain.runtime.device import seed_all
from disttrain.runtime.process_group import World
from tests.support.manifests import manifest, write_checkpoint

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)
ALONE = World(rank=0, size=1, local_rank=0, local_size=1, device=CPU, backend=None)


class LossScale(Precision):
    """A precision with a state, as float16 has one."""

    def __init__(self, scale):
        self.scale = torch.tensor(scale)

    def state_dict(self):
        return {"precision.scale": self.scale}

    def load_state_dict(self, state):
        self.scale = state["precision.scale"]


def state_of(*parts, world=ALONE):
    model = nn.Linear(2, 3)
    return TrainState(model, torch.optim.SGD(model.parameters()), parts, world)


def drawn():
    return torch.rand(()).item(), np.random.rand()


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_state_of_a_precision_resumes_on_any_number_of_ranks_and_random_numbers_on_the_same(
    tmp_path, world_size
):
    seed_all(1)
    captured = own_share(state_of(LossScale(1024.0), RandomState(CPU)).capture(), 0, 1)
    expected = drawn()
    source = ResumeSource(**vars(write_checkpoint(tmp_path, [captured], manifest(5, world_size=world_size))))
    precision, random = LossScale(1.0), RandomState(CPU)
    assert state_of(precision, random).restore(source) == 5
    random.restart(5, 0, ALONE)
    assert (precision.scale.item(), drawn() == expected) == (1024.0, world_size == 1)


def test_a_restart_on_another_number_of_ranks_repeats_no_random_numbers():
    numbers = []
    for rank in range(8):
        seed_all(5 + 1 + rank)  # as at the start of a run on eight ranks
        numbers.append(drawn())
    for step in (1, 2, 3):
        for rank in range(2):
            RandomState(CPU).restart(step, 5, dataclasses.replace(ALONE, rank=rank, size=2))
            numbers.append(drawn())
    assert len(set(numbers)) == len(numbers)


@pytest.fixture
def generators(monkeypatch):
    """The state of each GPU's generator, as torch keeps and gives it: bytes in host memory."""
    states = {torch.device("cuda", index): torch.full((16,), index, dtype=torch.uint8) for index in range(2)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device].clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states[device].copy_(state))
    return states


def test_a_pass_without_effect_restores_random_numbers_and_buffers_and_leaves_no_gradient(generators):
    model = nn.BatchNorm1d(2)
    seed_all(1)
    with preserve_state(model, GPU):
        expected = drawn()
        generators[GPU] += 1
        model(torch.rand(4, 2)).sum().backward()
    assert drawn() == expected
    assert [state[0].item() for state in generators.values()] == [0, 1]
    assert model.running_mean.tolist() == [0.0, 0.0]
    assert model.weight.grad is None


def test_a_checkpoint_has_random_numbers_of_the_gpu_of_each_rank(generators):
    world = World(rank=1, size=2, local_rank=1, local_size=2, device=GPU, backend="nccl")
    random = RandomState(GPU)
    own = state_of(random, world=world).capture().own
    assert own["rank-00001.cuda"].tolist() == [1] * 16
    generators[GPU] += 1
    random.load_state_dict({name.replace("rank-00001", "rank"): value for name, value in own.items()})
    random.restart(3, 0, world)
    assert [state[0].item() for state in generators.values()] == [0, 1]
    set_random_state(random_state(CPU), GPU)  # a checkpoint written on CPUs
    assert generators[GPU][0].item() == 1
