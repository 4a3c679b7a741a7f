"""Loss scaling and skipped updates, against `torch.amp.GradScaler` and against updates that never ran."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from disttrain.config.config_tree import Config
from disttrain.config.sections.optim import OptimConfig
from disttrain.data.synthetic import build as build_source
from disttrain.models.resnet import build as build_resnet
from disttrain.optim.optimizer import build_optimizer
from disttrain.optim.precision import LossScale, Precision, step_unless
from tests.support.stopping import alone, train_until
from tests.support.tolerance import AUTOCAST_DTYPES, approx_losses, tolerance

CPU = torch.device("cpu")


def test_the_loss_scale_follows_the_grad_scaler_of_torch():
    generator = torch.Generator().manual_seed(3)
    overflows = torch.rand(200, generator=generator) < 0.2
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=5)
    scale = LossScale(CPU, growth_interval=5)
    expected, found = [], []
    for overflow in overflows:
        scaler.scale(weight.sum()).backward()
        if overflow:
            weight.grad[0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        expected.append((scaler.get_scale(), scaler.state_dict()["_growth_tracker"]))
        scale.update(overflow)
        found.append((scale.value.item(), scale.clean_steps.item()))
    assert found == expected
    assert len({value for value, _ in found}) > 5


def test_the_loss_scale_stays_finite():
    scale = LossScale(CPU, initial=2.0**125, growth_interval=1)
    for _ in range(4):
        scale.update(torch.tensor(False))
    assert scale.value.item() == 2.0**126


def test_gradients_are_unscaled_before_the_norm_is_taken():
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    precision = Precision(CPU, checks_gradients=True, loss_scale=LossScale(CPU))
    precision.backward((weight * weight).sum() / 2)
    assert weight.grad.norm().item() == 5 * 2.0**16
    precision.unscale([weight])
    assert weight.grad.tolist() == [3.0, 4.0]


class Factors(TorchDispatchMode):
    """Devices of the factors of in-place products."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name == "aten::_foreach_mul_":
            self.devices.append(args[1].device.type)
        return func(*args, **(kwargs or {}))


def test_offloaded_gradients_are_unscaled_and_updated_on_their_own_device():
    """Scale and norm are on the device of the passes. `meta` stands for that of the parameters."""
    weight = nn.Parameter(torch.ones(2, device="meta"))
    weight.grad = torch.ones(2, device="meta")
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer._step_supports_amp_scaling = True
    seen = []
    optimizer.step = lambda: seen.append(optimizer.found_inf.device.type)
    precision = Precision(CPU, checks_gradients=True, loss_scale=LossScale(CPU))
    with Factors() as factors:
        precision.unscale([weight])
    skipped = precision.step(optimizer, torch.tensor(torch.inf))
    assert (factors.devices, seen, skipped.item()) == (["meta"], ["meta"], True)
    assert precision.loss_scale.value.item() == 2.0**15


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("bad", [(0,), (2,), (0, 1, 4)])
def test_a_skipped_update_leaves_no_trace(name: str, fused: bool, bad: tuple[int, ...]):
    """Updates with the bad ones skipped equal the good updates alone, bit by bit."""

    def train(steps: list[int], mark_bad: bool) -> nn.Linear:
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        optimizer = build_optimizer(model.parameters(), OptimConfig(name=name, fused=fused, weight_decay=0.1))
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            is_bad = mark_bad and step in bad
            if is_bad:
                model.weight.grad[0, 0] = torch.nan
            step_unless(torch.tensor(is_bad), optimizer)
        return model

    # uninitialised memory of the process may be zero by chance
    junk = [torch.full((3, 3), 1e30) for _ in range(50)]
    del junk
    skipping = train(list(range(6)), mark_bad=True)
    without = train([step for step in range(6) if step not in bad], mark_bad=False)
    for one, other in itertools.zip_longest(skipping.parameters(), without.parameters()):
        assert torch.equal(one, other)


@pytest.mark.parametrize("model", ["gpt", "mlp"])
@pytest.mark.parametrize("dtype", AUTOCAST_DTYPES)
def test_the_loss_curve_stays_within_the_spacing_of_the_dtype(dtype: str, model: str, tmp_path):
    curves, dtypes = [], []
    for precision in ("fp32", dtype):
        folder = tmp_path / precision
        metrics = train_until(alone(), small(model, precision), folder, 0, None).metrics
        curves.append(torch.tensor([point.loss for point in metrics.loss_history]))
        dtypes.append(metrics.compute_dtypes)
    exact, found = curves
    assert exact[-1] < 0.95 * exact[0]
    assert not torch.equal(exact, found)
    assert ((found - exact).abs() / exact).max() < tolerance(dtype=AUTOCAST_DTYPES[dtype])
    named = {"bf16": "bfloat16", "fp16": "float16"}[dtype]
    assert [set(each.values()) for each in dtypes] == [{"float32"}, {named}]


def small(model: str, dtype: str) -> Config:
    """Sixteen steps of a GPT or of a multilayer perceptron."""
    if model == "gpt":
        data = {"kind": "synthetic", "task": "language", "vocab": 32, "seq_len": 16}
        options = {"kind": "gpt", "layers": 1, "width": 32, "heads": 2}
    else:
        data = {"kind": "synthetic", "shape": [8], "classes": 4}
        options = {"kind": "mlp", "hidden": [32]}
    return Config.model_validate(
        {
            "model": options,
            "data": {**data, "samples": 16, "valid_samples": 4},
            "train": {"steps": 16, "local_batch_size": 16, "log_every": 4},
            "optim": {"lr": 3e-3, "warmup_steps": 4, "grad_clip": 1.0},
            "precision": {"dtype": dtype},
            "resources": {"device": "cpu"},
            "telemetry": {"sinks": [], "profiled_steps": 0, "gpu_every_s": 0, "warmup_steps": 1},
        }
    )


def test_a_resnet_in_bf16_follows_one_in_float32():
    source = build_source(task="classification", shape=[3, 8, 8], classes=4)
    images, labels = (torch.stack(parts) for parts in zip(*(source.train[i] for i in range(16)), strict=True))
    curves = []
    for dtype in (None, torch.bfloat16):
        torch.manual_seed(0)
        model, precision = build_resnet(source, width=4), Precision(CPU, autocast_dtype=dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for _ in range(6):
            with precision.autocast():
                loss = nn.functional.cross_entropy(model(images), labels)
            precision.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        curves.append(losses)
    assert curves[1] == pytest.approx(curves[0], rel=tolerance(2, torch.bfloat16))  # batch norms amplify
    assert curves[1] != approx_losses(curves[0]), "the convolutions computed in float32"
    assert curves[0][-1] < 0.8 * curves[0][0]
