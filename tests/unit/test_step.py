"""One optimizer step on one rank: its result, the hooks of its model, its batches."""

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from disttrain.config.batch_plan import plan_batch
from disttrain.data.loader import to_device
from disttrain.models.hooks import ModelHooks
from tests.support.steppers import stepper
from tests.support.tolerance import tolerance


def stepped(model, step=1, accumulation=1, **optim):
    options = {"name": "sgd", "lr": 0.5, "momentum": 0.0} | optim
    return stepper(model, plan_batch(2, 2 * accumulation, 1), **options).step(step, batches())


def batches():
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(2, 4, generator=generator), torch.tensor([0, 2])


def test_a_step_returns_its_loss_and_its_learning_rate():
    model = nn.Linear(4, 3)
    inputs, targets = next(batches())
    expected = cross_entropy(model(inputs), targets).item()
    result = stepped(model, 2, schedule="linear")
    assert (result.step, result.loss.item(), result.grad_norm, result.skipped) == (2, expected, None, None)
    assert result.lr == pytest.approx(0.5 * 0.8)


def test_the_gradient_norm_is_the_one_before_clipping():
    model = nn.Linear(4, 3, bias=False)
    before = model.weight.detach().clone()
    result = stepped(model, grad_clip=1e-3)
    assert result.grad_norm.item() > 1e-2
    moved = (model.weight - before).norm().item()
    assert moved == pytest.approx(0.5 * 1e-3, abs=tolerance(magnitude=before.abs().max().item()))


def test_the_loss_of_accumulated_micro_batches_is_their_mean():
    model, given = nn.Linear(4, 3), batches()
    losses = [cross_entropy(model(x), y).item() for x, y in (next(given) for _ in range(3))]
    assert stepped(model, accumulation=3).loss.item() == pytest.approx(sum(losses) / 3, rel=tolerance())


def test_the_hook_of_the_model_gets_the_number_of_the_step():
    class Recording(nn.Linear, ModelHooks):
        def on_step(self, step):
            self.steps = [step]

    model = Recording(4, 3)
    stepped(nn.Sequential(model), 7)
    assert model.steps == [7]


def test_a_batch_may_hold_tensors_at_any_depth():
    class Pair(NamedTuple):
        x: torch.Tensor
        y: object

    batch = {"a": [torch.ones(2)], "b": Pair(torch.zeros(3), ("text", 4))}
    moved = to_device(batch, torch.device("meta"))
    assert (moved["a"][0].device.type, moved["b"].x.device.type) == ("meta", "meta")
    assert moved["b"].y == ("text", 4)
