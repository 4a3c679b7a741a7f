"""Group norms in place of batch norms."""

from __future__ import annotations

import torch
from torch import nn

from disttrain.data.synthetic import build as build_source
from disttrain.models.resnet import build
from disttrain.transforms.group_norm import build as group_norm
from tests.support.tolerance import assert_close


def test_every_batch_norm_of_a_resnet_is_replaced_and_names_stay():
    model = build(build_source(task="classification", shape=[3, 8, 8], classes=10), width=8)
    names = [name for name, _ in model.named_parameters()]
    changed = group_norm(model)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in changed.modules())
    assert [name for name, _ in changed.named_parameters()] == names
    block = changed.blocks[0]
    assert block.last_norm is block.residual[-1]
    assert (block.last_norm.weight == 0).all(), "residual blocks still begin as the identity"


def test_the_output_of_a_sample_does_not_depend_on_its_batch():
    torch.manual_seed(0)
    model = group_norm(nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12, affine=False)))
    images = torch.randn(4, 3, 8, 8)
    assert_close(model(images)[:1], model(images[:1]), sums=2)
    assert model[1].num_groups == 4
