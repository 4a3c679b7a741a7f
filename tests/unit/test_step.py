"""One optimizer step on one rank: its result, its precision, the hooks of its model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import nn

from disttrain.config.batch_plan import plan_batch
from disttrain.data.loader import to_device
from disttrain.engine.step import Stepper
from disttrain.models.hooks import ModelHooks
from disttrain.optim.precision import Precision
from tests.support.steppers import stepper
from tests.support.tolerance import tolerance


class Counting(nn.Linear, ModelHooks):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.steps: list[int] = []

    def on_step(self, step: int) -> None:
        self.steps.append(step)


def runner(
    model: nn.Module, precision: Precision | None = None, accumulation: int = 1, **optim: object
) -> Stepper:
    options = {"name": "sgd", "lr": 0.5, "momentum": 0.0} | optim
    return stepper(model, plan_batch(2, 2 * accumulation, 1), precision=precision, **options)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(2, 4, generator=generator), torch.tensor([0, 2])


def test_a_step_returns_its_loss_and_its_learning_rate():
    model = nn.Linear(4, 3)
    inputs, targets = next(batches())
    expected = nn.functional.cross_entropy(model(inputs), targets).item()
    result = runner(model, schedule="linear").step(2, batches())
    assert (result.step, result.loss.item(), result.grad_norm, result.skipped) == (2, expected, None, None)
    assert result.lr == pytest.approx(0.5 * 0.8)


def test_the_gradient_norm_is_the_one_before_clipping():
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone(), model.bias.detach().clone()
    result = runner(model, grad_clip=1e-3).step(1, batches())
    moved = torch.cat([(model.weight - before[0]).flatten(), model.bias - before[1]]).norm()
    assert result.grad_norm.item() > 1e-2
    assert moved.item() == pytest.approx(0.5 * 1e-3, abs=tolerance(magnitude=before[0].abs().max().item()))


def test_the_loss_of_accumulated_micro_batches_is_their_mean():
    model = nn.Linear(4, 3)
    given = batches()
    losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in (next(given) for _ in range(3))]
    result = runner(model, accumulation=3).step(1, batches())
    assert result.loss.item() == pytest.approx(sum(losses) / 3, rel=tolerance())


def test_a_step_whose_gradients_are_not_finite_is_skipped():
    model = nn.Linear(4, 3)
    made = runner(model, Precision(checks_gradients=True), momentum=0.9)
    given = list(itertools.islice(batches(), 3))
    given[1][0][0, 0] = torch.inf
    weights = [model.weight.detach().clone()]
    results = []
    for step, batch in enumerate(given, 1):
        results.append(made.step(step, iter([batch])))
        weights.append(model.weight.detach().clone())
    assert [bool(result.skipped) for result in results] == [False, True, False]
    assert [bool(result.grad_norm.isfinite()) for result in results] == [True, False, True]
    assert [torch.equal(a, b) for a, b in itertools.pairwise(weights)] == [False, True, False]
    assert model.weight.isfinite().all()


def test_the_hooks_of_the_model_are_called():
    model = Counting()
    made = runner(model)
    for step in (1, 2):
        made.step(step, batches())
    assert model.steps == [1, 2]


def test_a_batch_may_hold_tensors_at_any_depth():
    class Pair(NamedTuple):
        x: torch.Tensor
        y: object

    batch = {"a": [torch.ones(2)], "b": Pair(torch.zeros(3), ("text", 4))}
    moved = to_device(batch, torch.device("meta"))
    assert (moved["a"][0].device.type, moved["b"].x.device.type) == ("meta", "meta")
    assert moved["b"].y == ("text", 4)
