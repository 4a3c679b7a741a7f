"""Counted FLOPs against hand formulas."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from disttrain.config.sections.model import DataConfig, ModelConfig
from disttrain.engine.kinds import build_model, build_source
from disttrain.models.flops import CONVOLUTION, MATMUL, flops_per_sample
from tests.support.small_models import CLASSES, FEATURES, Net, source


def test_two_linear_layers():
    hidden = 16
    forward = 2 * FEATURES * hidden + 2 * hidden * CLASSES
    assert flops_per_sample(Net(hidden), source().train[0][0]) == {MATMUL: 3 * forward}


def test_a_decoder_is_the_formula_of_the_field():
    """6 x matrix parameters + 12 x layers x width x length, per token (PaLM, appendix B)."""
    layers, width, length = 3, 64, 32
    data = build_source(
        DataConfig(kind="synthetic", task="language", vocab=100, seq_len=length, samples=4, valid_samples=0)
    )
    model = build_model(ModelConfig(kind="gpt", layers=layers, width=width, heads=4), data)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() >= 2)  # the tied head counts, once
    per_token = 6 * matrices + 12 * layers * width * length
    assert flops_per_sample(model, data.train[0][0]) == {MATMUL: length * per_token}


def images(size):
    shape = (3, size, size)
    return build_source(DataConfig(kind="synthetic", shape=shape, classes=10, samples=2, valid_samples=0))


@pytest.mark.parametrize("depth", [18, 50])
def test_a_residual_network_is_the_sum_of_its_layers(depth):
    """2 x elements of all kernels x positions for a convolution, 2 x weights for the last layer."""
    data = images(64)
    model = build_model(ModelConfig(kind="resnet", depth=depth, width=16), data)
    expected = {CONVOLUTION: 0, MATMUL: 0}

    def count(layer, _, output):
        if isinstance(layer, nn.Conv2d):
            expected[CONVOLUTION] += 3 * 2 * layer.weight.numel() * output.shape[2] * output.shape[3]
        elif isinstance(layer, nn.Linear):
            expected[MATMUL] += 3 * 2 * layer.weight.numel()

    found = flops_per_sample(model, data.train[0][0])
    for layer in model.modules():
        layer.register_forward_hook(count)
    with torch.no_grad():
        model.eval()(data.train[0][0][None])
    assert found == expected


def test_resnet_50_asks_for_what_is_published():
    """4.1 billion multiply-adds for one image of 224 pixels (He et al. give 3.8 with stride in the 1x1)."""
    model = build_model(ModelConfig(kind="resnet", depth=50), images(224))
    flops = flops_per_sample(model, images(224).train[0][0])
    assert sum(flops.values()) / 3 / 2 == pytest.approx(4.1e9, rel=0.02)


@pytest.mark.parametrize("kind", ["gpt", "resnet"])
def test_three_times_the_forward_is_what_training_does(kind):
    """But for the gradient of the images, which nobody needs."""
    options = {"layers": 2, "width": 32, "heads": 2} if kind == "gpt" else {"depth": 18, "width": 8}
    data = images(32)
    if kind == "gpt":
        data = build_source(
            DataConfig(kind="synthetic", task="language", vocab=50, seq_len=16, samples=2, valid_samples=0)
        )
    model = build_model(ModelConfig(kind=kind, **options), data)
    total = sum(flops_per_sample(model, data.train[0][0]).values())
    first = 0
    if kind == "resnet":
        kernel = model.stem[0].weight
        first = 2 * kernel.numel() * 32 * 32
    inputs = data.train[0][0][None].repeat(2, *[1] * data.train[0][0].dim())
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(inputs).sum().backward()
    assert counter.get_total_flops() == 2 * (total - first)


def test_counting_changes_nothing():
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    flops_per_sample(model, source().train[0][0])
    assert model.training
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_nothing_countable_is_nothing_not_zero():
    class Lookup(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs + 1

    assert flops_per_sample(Lookup(), source().train[0][0]) == {}


def test_a_model_without_memory_is_counted_as_one_on_the_cpu():
    expected = flops_per_sample(Net(8), source().train[0][0])
    with torch.device("meta"):
        model = Net(8)
    assert flops_per_sample(model, source().train[0][0]) == expected != {}


def on_a_gpu_alone(outputs: torch.Tensor) -> torch.Tensor:
    assert outputs.is_cuda
    return outputs


@pytest.mark.parametrize("reads", [lambda y: y * y.sum().item(), lambda y: y @ y.double(), on_a_gpu_alone])
def test_a_model_that_shapes_alone_cannot_run_has_no_count_instead_of_a_part_of_it(reads):
    class Partly(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return reads(super().forward(inputs))

    with torch.device("meta"):
        model = Partly(8, 8)
    assert flops_per_sample(model, torch.zeros(8)) == {}
    assert model.training


def test_a_count_by_shapes_leaves_no_tensor_without_values_in_the_model():
    class Keeps(nn.Linear):
        kept = None

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.kept = torch.ones(8, device=inputs.device) if self.kept is None else self.kept
            return super().forward(inputs) * self.kept

    with torch.device("meta"):
        model = Keeps(8, 8)
    assert flops_per_sample(model, torch.zeros(8)) == {MATMUL: 3 * 2 * 8 * 8}
    assert model.kept is None
