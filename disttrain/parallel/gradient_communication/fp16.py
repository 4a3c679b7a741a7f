"""Scheme `fp16`: gradients travel as float16, which has 11 bits of precision, values up to 65,504."""

from __future__ import annotations

import torch

from disttrain.config.sections.gradient_communication import GradientCommunicationConfig
from disttrain.parallel.gradient_communication.counted_group import own_group
from disttrain.parallel.gradient_communication.half import Half
from disttrain.runtime.process_group import World


def build(options: GradientCommunicationConfig, world: World) -> Half:
    return Half(own_group(world), torch.float16)
