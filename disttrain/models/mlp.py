"""A multilayer perceptron over the flattened input."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import PositiveInt
from torch import nn

from disttrain.records.dataset import DataShape

TAKES = ("numbers", "images")


def build(
    source: DataShape,
    *,
    hidden: tuple[PositiveInt, ...] = (256, 256),
    activation: Literal["relu", "gelu"] = "relu",
    dropout: float = 0.0,
) -> nn.Sequential:
    """Linear layers, the last one of the source's classes or regression outputs.

    Parameters
    ----------
    hidden : widths of the layers before the last one.
    activation : function after each of them.
    dropout : share of activations set to 0.

    Raises
    ------
    ConfigError : a language source, or a width below 1.
    """
    source.require("mlp", TAKES)
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(source.shape)
    for width in hidden:
        layers += [
            nn.Linear(inputs, width),
            nn.ReLU() if activation == "relu" else nn.GELU(),
            nn.Dropout(dropout),
        ]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, source.classes))
