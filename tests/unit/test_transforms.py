"""Transforms: functions from module to module, by import path."""

from __future__ import annotations

import pytest
from torch import nn

from disttrain.errors import ConfigError
from disttrain.transforms import load_transform

HERE = __name__


def wrap(model: nn.Module) -> nn.Module:
    return nn.Sequential(model)


def forget(model: nn.Module) -> None:
    return None


not_callable = 3


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
