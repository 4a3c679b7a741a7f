"""Random numbers of a GPU go into a checkpoint and come back out of it: a GPU played by patches.

`tests/gpu` resumes a run with dropout on a real one.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from disttrain.checkpoint.state import RandomState, TrainState, preserve_state, random_state, set_random_state
from disttrain.runtime.process_group import World

DEVICE = torch.device("cuda", 1)


@pytest.fixture
def generators(monkeypatch) -> dict[torch.device, torch.Tensor]:
    """The state of each GPU's generator, as torch keeps and gives it: bytes in host memory."""
    states = {torch.device("cuda", index): torch.full((16,), index, dtype=torch.uint8) for index in range(2)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device].clone())

    def set_state(state: torch.Tensor, device: torch.device) -> None:
        states[device] = state.clone()

    monkeypatch.setattr(torch.cuda, "set_rng_state", set_state)
    return states


def test_the_state_of_the_rank_s_own_gpu_is_kept_and_put_back(generators):
    kept = random_state(DEVICE)
    assert kept["rank.cuda"].tolist() == [1] * 16
    generators[DEVICE] += 5
    set_random_state(kept, DEVICE)
    assert [state.tolist() for state in generators.values()] == [[0] * 16, [1] * 16]


def test_a_pass_aside_draws_nothing_from_it(generators):
    with preserve_state(nn.Linear(2, 2), DEVICE):
        generators[DEVICE] += 1
    assert generators[DEVICE].tolist() == [1] * 16


def test_a_checkpoint_has_it_for_each_rank(generators):
    world = World(rank=1, size=2, local_rank=1, local_size=2, device=DEVICE, backend="nccl")
    model = nn.Linear(2, 2)
    random = RandomState(DEVICE)
    state = TrainState(model, torch.optim.SGD(model.parameters()), [random], world).capture().own
    assert state["rank-00001.cuda"].tolist() == [1] * 16
    generators[DEVICE] += 1
    own = {name.removeprefix("rank-00001."): value for name, value in state.items() if "rank" in name}
    random.load_state_dict({f"rank.{name}": value for name, value in own.items()})
    random.restart(3, 0, world)
    assert generators[DEVICE].tolist() == [1] * 16


def test_a_checkpoint_written_on_cpus_is_taken_up_on_a_gpu(generators):
    set_random_state(random_state(torch.device("cpu")), DEVICE)
    assert generators[DEVICE].tolist() == [1] * 16
