"""Group norms in place of batch norms: statistics of each sample alone, the same with any batch size."""

from __future__ import annotations

import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_GROUPS = 32
"""Most groups of channels (Wu and He 2018, arXiv 1803.08494, section 3)."""


def build(model: nn.Module) -> nn.Module:
    """`model` with each batch norm replaced by a group norm of the same weight and bias.

    The number of groups is the greatest common divisor of 32 and the number of channels.
    """
    made: dict[nn.Module, nn.Module] = {}  # a module may be reached under several names
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, _BatchNorm):
                parent._modules[name] = made.setdefault(child, _replacement(child))
    return model


def _replacement(norm: _BatchNorm) -> nn.GroupNorm:
    groups = math.gcd(_GROUPS, norm.num_features)
    made = nn.GroupNorm(groups, norm.num_features, norm.eps, norm.affine, device="meta")
    if norm.affine:
        made.weight, made.bias = norm.weight, norm.bias
    return made
