"""Precision: dtype of autocast, loss scaling against `torch.amp.GradScaler`, and updates that are skipped."""

import pytest
import torch
from torch import nn

from disttrain.config.sections.compute import PrecisionConfig
from disttrain.config.sections.optim import OptimConfig
from disttrain.models.hooks import ModelHooks
from disttrain.optim.optimizer import build_optimizer
from disttrain.optim.precision import LossScale, Precision, RunningStatistics, build_precision, step_unless

CPU = torch.device("cpu")


def scaling():
    return Precision(CPU, checks_gradients=True, loss_scale=LossScale(CPU))


@pytest.mark.parametrize(
    ("options", "computed", "scales", "checks"),
    [
        ({"dtype": "fp32"}, torch.float32, False, True),
        ({"dtype": "bf16", "on_non_finite": "ignore"}, torch.bfloat16, False, False),
        ({"dtype": "fp16"}, torch.float16, True, True),
    ],
)
def test_the_config_decides_on_autocast_loss_scale_and_check(options, computed, scales, checks):
    precision, fields = build_precision(PrecisionConfig(**options), CPU, ModelHooks())
    with precision.autocast():
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == computed
    assert (precision.loss_scale is not None, precision.checks_gradients) == (scales, checks)
    assert fields["precision"] == options["dtype"]


def test_gradients_without_values_are_not_checked():
    hooks = ModelHooks()
    hooks.has_real_gradients = False
    assert not build_precision(PrecisionConfig(), CPU, hooks)[0].checks_gradients


def test_the_loss_scale_follows_the_grad_scaler_of_torch_and_a_checkpoint():
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=5)
    expected, found = [], []
    precision = Precision(CPU, loss_scale=LossScale(CPU, growth_interval=5))
    for overflow in torch.rand(200, generator=torch.Generator().manual_seed(3)) < 0.2:
        weight.grad = torch.full((2,), torch.inf if overflow else 1.0)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
        expected.append((scaler.get_scale(), scaler.state_dict()["_growth_tracker"]))
        resumed = Precision(CPU, loss_scale=LossScale(CPU, growth_interval=5))
        resumed.load_state_dict(precision.state_dict())
        precision = resumed
        precision.loss_scale.update(overflow)
        found.append((precision.loss_scale.value.item(), precision.loss_scale.clean_steps.item()))
    assert found == expected
    assert len({scale for scale, _ in found}) > 5


def test_a_checkpoint_of_another_precision_has_no_loss_scale():
    precision = scaling()
    precision.load_state_dict(Precision().state_dict())
    assert precision.loss_scale.value.item() == 2.0**16


def test_the_loss_scale_stays_finite():
    scale = LossScale(CPU, initial=2.0**125, growth_interval=1)
    for _ in range(4):
        scale.update(torch.tensor(False))
    assert scale.value.item() == 2.0**126


def test_gradients_are_unscaled_before_the_norm_is_taken():
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    precision = scaling()
    precision.backward((weight * weight).sum() / 2)
    assert weight.grad.norm().item() == 5 * 2.0**16
    precision.unscale([weight])
    assert weight.grad.tolist() == [3.0, 4.0]


def test_offloaded_gradients_are_unscaled_and_updated_on_their_own_device(monkeypatch):
    """Scale and norm are on the device of the passes. `meta` stands for that of the parameters."""
    weight = nn.Parameter(torch.ones(2, device="meta"))
    weight.grad = torch.ones(2, device="meta")
    optimizer, devices = torch.optim.SGD([weight], lr=0.1), []
    optimizer._step_supports_amp_scaling = True
    optimizer.step = lambda: devices.append(optimizer.found_inf.device.type)
    monkeypatch.setattr(torch, "_foreach_mul_", lambda _, factor: devices.append(factor.device.type))
    precision = scaling()
    precision.unscale([weight])
    assert precision.step(optimizer, torch.tensor(torch.inf)).item()
    assert devices == ["meta", "meta"]
    assert precision.loss_scale.value.item() == 2.0**15


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("bad", [(0,), (2,), (0, 1, 4)])
def test_updates_of_which_some_are_skipped_equal_the_others_alone(name, fused, bad):
    def train(steps):
        model = nn.Linear(3, 3)
        nn.init.ones_(model.weight)
        optimizer = build_optimizer([model.weight], OptimConfig(name=name, fused=fused, weight_decay=0.1))
        for step in steps:
            gradient = torch.randn(3, 3, generator=torch.Generator().manual_seed(step))
            model.weight.grad = gradient * torch.nan if step in bad else gradient
            step_unless(torch.tensor(step in bad), optimizer)
            assert not hasattr(optimizer, "found_inf")
        return model.weight

    # uninitialised memory of the process may be zero by chance
    junk = [torch.full((3, 3), 1e30) for _ in range(50)]
    del junk
    assert torch.equal(train(range(6)), train([step for step in range(6) if step not in bad]))


def test_running_statistics_are_put_back_after_a_skipped_step_alone():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    statistics = RunningStatistics(model)
    for skipped, value in ((False, 1.0), (True, torch.nan)):
        before = {name: buffer.clone() for name, buffer in model.named_buffers() if "running" in name}
        statistics.keep()
        model(torch.randn(4, 1, 2, 2) + value)
        statistics.restore_if(torch.tensor(skipped))
        assert all(torch.equal(model.get_buffer(name), old) is skipped for name, old in before.items())
