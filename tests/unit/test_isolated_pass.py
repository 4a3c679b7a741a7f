"""Gradients of a pass outside the training steps."""

import torch

from disttrain.checkpoint.state import drop_gradients
from tests.support.small_models import FEATURES, Deep


def test_gradients_of_an_isolated_pass_are_never_all_held_at_once():
    model = Deep()
    with drop_gradients(model):
        model(torch.ones(4, FEATURES)).sum().backward()
        assert all(parameter.grad is None for parameter in model.parameters())
    model(torch.ones(4, FEATURES)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
