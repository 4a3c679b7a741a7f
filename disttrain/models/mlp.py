"""A multilayer perceptron over the flattened input."""

from __future__ import annotations

import math
from typing import Literal

from torch import nn

from disttrain.data.source import Source
from disttrain.errors import ConfigError


def build(
    source: Source,
    *,
    hidden: tuple[int, ...] = (256, 256),
    activation: Literal["relu", "gelu"] = "relu",
    dropout: float = 0.0,
) -> nn.Sequential:
    """Linear layers of the widths `hidden`, and an output layer of the source's classes or regression
    outputs.

    Raises `ConfigError` for a language source or a width below 1.
    """
    if source.task == "language":
        raise ConfigError(
            f"model.kind=mlp takes numbers, but data.kind gives language ({source.record.name}); "
            "use data.kind=digits or synthetic, or model.kind=gpt"
        )
    if any(width < 1 for width in hidden):
        raise ConfigError(f"model.hidden={list(hidden)}: widths must be at least 1")
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
