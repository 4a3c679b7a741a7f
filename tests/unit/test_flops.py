"""Counted FLOPs against hand formulas."""

from __future__ import annotations

import torch
from torch import nn

from disttrain.config import DataConfig, ModelConfig
from disttrain.flops import model_flops_per_sample
from disttrain.registry import build_model, build_source
from tests.support.nets import CLASSES, FEATURES, Net, source

CPU = torch.device("cpu")


def test_two_linear_layers():
    hidden = 16
    forward = 2 * FEATURES * hidden + 2 * hidden * CLASSES
    assert model_flops_per_sample(Net(hidden), source().train, CPU) == 3 * forward


def test_a_decoder_is_the_formula_of_the_field():
    """6 x matrix parameters + 12 x layers x width x length, per token (PaLM, appendix B)."""
    layers, width, length = 3, 64, 32
    data = build_source(
        DataConfig(kind="synthetic", task="language", vocab=100, seq_len=length, samples=4, valid_samples=0)
    )
    model = build_model(ModelConfig(kind="gpt", layers=layers, width=width, heads=4), data)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() >= 2)  # the tied head counts, once
    per_token = 6 * matrices + 12 * layers * width * length
    assert model_flops_per_sample(model, data.train, CPU) == length * per_token


def test_counting_changes_nothing():
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    model_flops_per_sample(model, source().train, CPU)
    assert model.training
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_nothing_countable_is_none_not_zero():
    class Lookup(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs + 1

    assert model_flops_per_sample(Lookup(), source().train, CPU) is None
