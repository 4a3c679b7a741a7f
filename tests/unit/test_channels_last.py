"""Channels last: another memory format of kernels and activations, the same names and numbers."""

from __future__ import annotations

import copy

import torch
from torch import nn

from disttrain.models.resnet import BasicBlock, ResNet
from disttrain.transforms import channels_last, load_transform
from tests.support.tolerance import assert_close


def formats(model: nn.Module) -> list[bool]:
    """Whether the input of each 3x3 convolution is channels-last, in the order of the forward pass."""
    seen: list[bool] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            module.register_forward_pre_hook(
                lambda _, inputs: seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
            )
    return seen


def test_every_activation_is_channels_last_and_numbers_stay() -> None:
    torch.manual_seed(0)
    plain = ResNet(BasicBlock, (1, 1, 1, 1), 3, True, 10, 8)
    model = load_transform("channels_last")(copy.deepcopy(plain))
    images = torch.randn(2, 3, 16, 16)
    before, after = formats(plain), formats(model)
    expected, found = plain(images), model(images)
    assert_close(found, expected, sums=9)  # convolutions
    assert not any(before)
    assert len(after) == 9
    assert all(after)
    assert {name: value.shape for name, value in model.state_dict().items()} == {
        name: value.shape for name, value in plain.state_dict().items()
    }


def test_other_inputs_pass_unchanged() -> None:
    model = channels_last.build(nn.Linear(2, 2))
    assert model(torch.ones(3, 2)).shape == (3, 2)
