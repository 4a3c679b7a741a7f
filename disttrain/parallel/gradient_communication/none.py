"""Scheme `none`: the plain average. DDP computes it without a hook; other schemes use it in their warm-up."""

from __future__ import annotations

from disttrain.config.sections.gradient_communication import GradientCommunicationConfig
from disttrain.parallel.gradient_communication.base import FlatGradient, Scheme
from disttrain.parallel.gradient_communication.counted_group import own_group
from disttrain.runtime.process_group import World


class Uncompressed(Scheme):
    """One all-reduce of a bucket."""

    def average(self, gradient: FlatGradient, step: int) -> None:
        self.group.mean(gradient.values)


def build(options: GradientCommunicationConfig, world: World) -> Uncompressed:
    return Uncompressed(own_group(world))
