"""Residual networks for images (He et al. 2015, arXiv:1512.03385), with stride in the 3x3 of a bottleneck.

Inputs below 64 pixels on their shorter side use the stem common for CIFAR, which keeps their size (3x3,
stride 1, no pooling). Larger inputs use the original stem (7x7, stride 2, then 3x3 max-pooling).
"""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from disttrain.records.dataset import DataShape

TAKES = ("images",)
_SMALL_INPUT = 64


def build(source: DataShape, *, depth: Literal[18, 50] = 18, width: PositiveInt = 64) -> ResNet:
    """ResNet-18 or ResNet-50 for images of shape (channels, height, width).

    Parameters
    ----------
    depth : layers.
    width : channels of the first stage; the others have 2, 4 and 8 times as many.

    Raises
    ------
    ConfigError : samples are not images, or the width is below 1.
    """
    source.require("resnet", TAKES)
    block, counts = (BasicBlock, (2, 2, 2, 2)) if depth == 18 else (Bottleneck, (3, 4, 6, 3))
    return ResNet(block, counts, source.shape[0], min(source.shape[1:]) < _SMALL_INPUT, source.classes, width)


class ResNet(nn.Module):
    """Maps images of shape (batch, channels, height, width) to logits of shape (batch, classes)."""

    def __init__(
        self,
        block: type[Block],
        counts: tuple[int, ...],
        channels: int,
        small_input: bool,
        classes: int,
        width: int,
    ) -> None:
        super().__init__()
        stem = [convolution(channels, width, 3 if small_input else 7, 1 if small_input else 2)]
        stem += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if not small_input:
            stem.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.stem = nn.Sequential(*stem)
        blocks: list[Block] = []
        inputs = width
        for stage, count in enumerate(counts):
            for index in range(count):
                blocks.append(block(inputs, width << stage, stride=2 if stage and not index else 1))
                inputs = (width << stage) * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Block):
                # it starts as the identity (Goyal et al. 2017, arXiv:1706.02677, section 5.1)
                nn.init.zeros_(module.get_parameter("last_norm.weight"))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class Block(nn.Module):
    """Convolutions and a shortcut. `last_norm` is the last one of `residual`."""

    expansion = 1
    """Output channels / `width`."""
    residual: nn.Module
    shortcut: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        return (self.residual(x) + self.shortcut(x)).relu_()


class BasicBlock(Block):
    """Two 3x3 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.last_norm = nn.BatchNorm2d(width)
        self.residual = nn.Sequential(
            convolution(inputs, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            convolution(width, width, 3), self.last_norm,
        )  # fmt: skip
        self.shortcut = projection(inputs, width, stride)


class Bottleneck(Block):
    """1x1, 3x3 and 1x1 convolutions, the last to four times the width."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.last_norm = nn.BatchNorm2d(outputs)
        self.residual = nn.Sequential(
            convolution(inputs, width, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            convolution(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            convolution(width, outputs, 1), self.last_norm,
        )  # fmt: skip
        self.shortcut = projection(inputs, outputs, stride)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Module:
    """A convolution with padding `size` // 2, without bias, since a batch norm follows."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The shortcut: the identity for equal shapes, else a 1x1 convolution."""
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
