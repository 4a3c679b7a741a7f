"""Transforms: functions from module to module, by import path."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from disttrain.config.parsing import Draft, check
from disttrain.errors import ConfigError
from disttrain.transforms import load_transform

HERE = __name__


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def double(model: nn.Module) -> nn.Module:
    model.__class__ = Doubled
    return model


def add_three(model: nn.Module) -> nn.Module:
    model.register_forward_hook(lambda module, inputs, output: output + 3)
    return model


def wrap(model: nn.Module) -> nn.Module:
    return nn.Sequential(model)


def forget(model: nn.Module) -> None:
    return None


not_callable = 3


def test_transforms_are_applied_in_their_order():
    model: nn.Module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    for name in ("double", "add_three"):
        model = load_transform(f"{HERE}:{name}")(model)
    assert model(torch.ones(1)).item() == 5


def test_none_is_the_default():
    assert check(Draft({"train": {"steps": 1, "local_batch_size": 1}})).model.transforms == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such", "cannot be imported"),
        ("no.such:thing", "cannot be imported"),
        ("math:no_such", "cannot be imported"),
        (f"{HERE}:not_callable", "is int, not a callable"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        load_transform(name)


@pytest.mark.parametrize(
    ("name", "message"), [("wrap", "names or the order"), ("forget", "returned NoneType")]
)
def test_a_transform_that_checkpoints_would_not_fit_is_refused(name, message):
    transform = load_transform(f"{HERE}:{name}")
    with pytest.raises(ConfigError, match=message):
        transform(nn.Linear(1, 1))
