"""Scheme `fp16`: gradients travel as float16, which has 11 bits of precision, values up to 65,504."""

from __future__ import annotations

import torch

from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.parallel.schemes.scheme import FlatGradient, Scheme


class SixteenBit(Scheme):
    """One all-reduce of a bucket in `dtype`.

    The division by the number of ranks comes before the conversion: the sum overflows only where the mean
    does.
    """

    def __init__(self, group: CountedGroup, dtype: torch.dtype) -> None:
        super().__init__(group)
        self._dtype = dtype

    def average(self, gradient: FlatGradient, step: int) -> None:
        narrow = torch.empty_like(gradient.values, dtype=self._dtype)
        torch.div(gradient.values, self.group.size, out=narrow)
        gradient.values.copy_(self.group.all_reduce(narrow))


def build(group: CountedGroup) -> SixteenBit:
    return SixteenBit(group, torch.float16)
