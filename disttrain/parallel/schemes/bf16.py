"""Scheme `bf16`: gradients travel as bfloat16, which has 8 bits of precision, the range of float32."""

from __future__ import annotations

import torch

from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.parallel.schemes.fp16 import SixteenBit


def build(group: CountedGroup) -> SixteenBit:
    return SixteenBit(group, torch.bfloat16)
