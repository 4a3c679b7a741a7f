"""The optimizer: which parameters decay, and that fused kernels compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from disttrain.config.sections.optim import OptimConfig
from disttrain.optim.optimizer import build_optimizer
from tests.support.tolerance import assert_close


def test_weight_decay_spares_biases_and_norms():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    optimizer = build_optimizer(model.parameters(), OptimConfig(weight_decay=0.1))
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: decays[id(p)] for name, p in model.named_parameters()} == {
        "0.weight": 0.1, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0,
    }  # fmt: skip


def test_weight_decay_spares_norms_of_several_dimensions():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm((2, 4, 4)), nn.Embedding(3, 4))
    optimizer = build_optimizer(model.parameters(), OptimConfig(weight_decay=0.1), model)
    decayed = {id(p) for p in optimizer.param_groups[0]["params"]}
    assert {name for name, p in model.named_parameters() if id(p) in decayed} == {"0.weight", "2.weight"}


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_fused_and_plain_kernels_agree(name):
    updated = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = build_optimizer(
            model.parameters(), OptimConfig(name=name, lr=0.1, weight_decay=0.1, fused=fused)
        )
        assert optimizer.defaults["fused"] is fused
        for _ in range(3):
            model(torch.ones(2, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        updated.append(model.weight.detach())
    assert_close(*updated, sums=3)  # updates
