"""Gradients that travel in a 16-bit type: half the bytes of float32."""

from __future__ import annotations

import torch
from torch import Tensor

from disttrain.parallel.gradient_communication.base import FlatGradient, Scheme
from disttrain.parallel.gradient_communication.counted_group import CountedGroup


def average_as(values: Tensor, group: CountedGroup, dtype: torch.dtype) -> None:
    """Overwrite `values` with their mean over ranks, summed in `dtype`.

    The division by the number of ranks comes before the conversion: the sum overflows only where the mean
    does.
    """
    narrow = torch.empty_like(values, dtype=dtype)
    torch.div(values, group.size, out=narrow)
    values.copy_(group.all_reduce(narrow))


class Half(Scheme):
    """One all-reduce of a bucket in `dtype`."""

    def __init__(self, group: CountedGroup, dtype: torch.dtype) -> None:
        super().__init__(group)
        self._dtype = dtype

    def average(self, gradient: FlatGradient, step: int) -> None:
        average_as(gradient.values, self.group, self._dtype)
