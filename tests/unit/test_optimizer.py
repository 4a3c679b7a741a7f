"""The optimizer and its learning rate: decayed parameters, fused kernels, schedules against closed forms."""

import math

import pytest
import torch
from torch import nn

from disttrain.config.schedules import learning_rate, peak_lr
from disttrain.config.sections.optim import OptimConfig
from disttrain.errors import ConfigError
from disttrain.optim.optimizer import build_optimizer, set_learning_rate, set_lr_scales
from tests.support.tolerance import assert_close


def test_matrices_and_kernels_decay_but_no_bias_and_no_norm_of_any_shape():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm((2, 4, 4)), nn.Embedding(3, 4), nn.Linear(4, 4))
    model[3].weight.requires_grad_(False)
    optimizer = build_optimizer(model.parameters(), OptimConfig(weight_decay=0.1), model)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: decay.get(id(p)) for name, p in model.named_parameters()} == {
        "0.weight": 0.1, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0, "2.weight": 0.1,
        "3.weight": None, "3.bias": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_fused_and_plain_kernels_agree(name):
    updated = []
    for fused in (None, False):
        model = nn.Linear(8, 8)
        nn.init.eye_(model.weight)
        config = OptimConfig(name=name, lr=0.1, weight_decay=0.1, fused=fused)
        optimizer = build_optimizer([model.weight], config)
        assert optimizer.defaults["fused"] is (fused is None)
        for step in range(3):
            model.weight.grad = torch.full((8, 8), 1.0 + step)
            optimizer.step()
        updated.append(model.weight.detach())
    assert_close(*updated, sums=3)  # updates


def test_groups_of_a_script_keep_their_ratio_of_learning_rates():
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.4)]
    optimizer = torch.optim.SGD(groups)
    assert set_lr_scales(optimizer) == 0.1
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.5, 2.0])
    set_learning_rate(optimizer, 0.0)
    with pytest.raises(ConfigError, match=r"lr=0\.0"):
        set_lr_scales(optimizer)


def rates(steps=9, batch=8, upto=None, **options):
    optim = OptimConfig(**{"lr": 1.0} | options)
    return [learning_rate(step, steps, optim, batch) for step in range(1, (upto or steps) + 1)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"warmup_steps": 5, "lr": 0.5}, [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5]),
        ({"schedule": "step", "step_every": 3, "step_factor": 0.5}, [1, 1, 1, 0.5, 0.5, 0.5, *[0.25] * 3]),
        (
            {"warmup_steps": 2, "schedule": "step", "step_every": 2, "step_factor": 0.5},
            [0.5, 1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125],
        ),
        ({"steps": 4, "schedule": "linear", "final_lr_ratio": 0.2}, [0.8, 0.6, 0.4, 0.2]),
        (
            {"steps": 4, "schedule": "cosine", "final_lr_ratio": 0.2},
            [0.2 + 0.4 * (1 + math.cos(math.pi * t / 4)) for t in (1, 2, 3, 4)],
        ),
        # the one step after the warm-up is the last
        ({"steps": 2, "warmup_steps": 1, "schedule": "linear", "final_lr_ratio": 0.2}, [1, 0.2]),
        (
            {"warmup_steps": 3, "schedule": "cosine_restarts", "restart_every": 2},
            [1 / 3, 2 / 3, 1, 0.5, 0, 0.5, 0, 0.5, 0],
        ),
        (
            {"steps": 3, "lr_scaling": "linear", "lr_base_batch": 32, "batch": 64, "warmup_steps": 2},
            [1, 2, 2],
        ),
    ],
    ids=str,
)
def test_schedules_after_the_warm_up(options, expected):
    assert rates(**options) == pytest.approx(expected)


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_cosine_restarts_follow_the_scheduler_of_torch(factor):
    """But for the last step of a cycle, which is at the floor, as the last step of `cosine` is."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4, factor, eta_min=0.1)
    ends = {1: [*range(4, 30, 4)], 2: [4, 12, 28], 3: [4, 16, 52]}[factor]
    options = {"restart_every": 4, "restart_factor": factor, "final_lr_ratio": 0.1}
    for step, rate in enumerate(rates(29, schedule="cosine_restarts", **options), 1):
        optimizer.step()
        scheduler.step()
        assert rate == pytest.approx(0.1 if step in ends else scheduler.get_last_lr()[0])


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 8), ("sqrt", math.sqrt(8))])
def test_batch_size_scaling_rules(rule, factor):
    assert peak_lr(OptimConfig(lr=0.1, lr_scaling=rule, lr_base_batch=32), 256) == pytest.approx(0.1 * factor)
