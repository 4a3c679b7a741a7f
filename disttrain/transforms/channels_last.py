"""Channels-last memory format: images and kernels are stored as (batch, height, width, channels).

Convolutions in bf16 and fp16 on a GPU then need no change of layout, and PyTorch's convolutions on a CPU are
faster, too. Shapes, names and numbers stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def build(model: nn.Module) -> nn.Module:
    """Store the kernels of `model` channels-last, in place, and images when they enter it."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.register_forward_pre_hook(_reordered)
    return model


def _reordered(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_image(value) for value in inputs)


def _image(value: Any) -> Any:
    is_image = isinstance(value, Tensor) and value.dim() == 4
    return value.contiguous(memory_format=torch.channels_last) if is_image else value
