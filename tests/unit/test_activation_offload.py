"""Activation offload: the same gradients; activations are copied, parameters are not."""

from __future__ import annotations

import copy

import pytest
import torch

from disttrain.data import synthetic
from disttrain.engine.objective import Task
from disttrain.errors import ConfigError
from disttrain.models import gpt
from disttrain.models.hooks import mix_in
from disttrain.transforms import activations
from disttrain.transforms.activations import Offloaded, checkpoint_activations, offload_activations


@pytest.fixture
def copies(monkeypatch):
    """Shapes of the tensors that came back from host memory, and no lower limit of their size."""
    monkeypatch.setattr(activations, "SMALLEST_BYTES", 0)
    found = []

    def unpack(packed):
        if not isinstance(packed, torch.Tensor):
            found.append(tuple(packed[1].shape))
            return packed[1].clone()
        return packed

    monkeypatch.setattr(activations, "unpack", unpack)
    return found


@pytest.mark.parametrize("autocasts", [False, True])
@pytest.mark.parametrize("recomputes", [False, True])
def test_gradients_are_bitwise_equal_and_parameters_stay(copies, recomputes, autocasts):
    source = synthetic.build(task="language", vocab=37, seq_len=11, samples=4, valid_samples=0)
    plain = gpt.build(source, layers=3, width=16, heads=2)
    offloaded = copy.deepcopy(plain)
    if recomputes:
        checkpoint_activations(offloaded, "full")
    mix_in(offloaded, Offloaded)
    batch = torch.utils.data.default_collate([source.train[i] for i in range(4)])
    for model in (plain, offloaded):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
            loss = Task.of(source).batch_loss(model, batch)
        loss.backward()
    assert list(dict(offloaded.named_parameters())) == list(dict(plain.named_parameters()))
    for found, expected in zip(offloaded.parameters(), plain.parameters(), strict=True):
        assert torch.equal(found.grad, expected.grad)
    assert copies.count((4, 11, 16)) >= 3  # an input of each block
    shapes = {tuple(p.shape) for p in plain.parameters()}
    shapes |= {shape[::-1] for shape in shapes}
    assert not shapes & set(copies)


def test_small_tensors_stay(copies, monkeypatch):
    monkeypatch.setattr(activations, "SMALLEST_BYTES", 1 << 20)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    mix_in(model, Offloaded)
    model(torch.randn(2, 4)).sum().backward()
    assert copies == []


def test_a_cpu_is_refused():
    with pytest.raises(ConfigError, match="needs a GPU, and this rank computes on cpu"):
        offload_activations(torch.nn.Linear(2, 2), torch.device("cpu"))
